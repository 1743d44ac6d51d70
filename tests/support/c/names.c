/* Names that are used again and again, in allocators that come and go, and then all tags there are. A leak checker looks at
   what is left. With an argument the program loses a block of its own, which the checker must find. */
#include <string.h>

#include "check.h"

static void *named(trtalloc_allocator *allocator, int version, int number) {
  char name[32];
  snprintf(name, sizeof name, "model %d", number);
  return trtalloc_tensorrt_allocator_named(allocator, version, name);
}

int main(int argc, char **argv) {
  static const int versions[] = {8601, 10701, 110400};
  trtalloc_allocator *allocator = NULL;
  for (int each = 0; each < 3; ++each) {
    CHECK(trtalloc_create("driver=sim", &allocator) == TRTALLOC_STATUS_OK);
    for (int i = 0; i < 300; ++i) {
      CHECK(named(allocator, versions[i % 3], i % 50) != NULL);
    }
    trtalloc_destroy(allocator);
  }
  for (int i = 0; i < 1100; ++i) {
    void *adapter = named(trtalloc_default(), 110400, i);
    CHECK(adapter != NULL);
    CHECK((adapter == trtalloc_tensorrt_allocator(trtalloc_default(), 110400)) == (i >= 1023));
  }
  CHECK(named(trtalloc_default(), 120000, 0) == NULL);
  CHECK(trtalloc_last_status() == TRTALLOC_STATUS_INVALID_ARGUMENT);
  if (argc > 1) {
    void *volatile lost = malloc(4711);
    CHECK(lost != NULL && argv != NULL);
    lost = NULL;
  }
  return 0;
}
