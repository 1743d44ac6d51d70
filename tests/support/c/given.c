/* A pool over memory of this program's own, with no driver, or whatever driver is there: `argv[1]` is what is expected of
 * driver=auto. */
#include <stdint.h>
#include <string.h>

#include "check.h"

static unsigned char memory[1 << 16];

static void over(const char *options) {
  trtalloc_allocator *pool = NULL;
  CHECK(trtalloc_create_from(memory + 1, sizeof memory - 1, options, &pool) == TRTALLOC_STATUS_OK);
  void *first = trtalloc_allocate(pool, 1000, 0, 0);
  void *second = trtalloc_allocate(pool, 1000, 256, 0);
  CHECK(first != NULL && second != NULL && first != second);
  CHECK((uintptr_t)first % 64 == 0 && (uintptr_t)second % 256 == 0);
  /* Resizing would have to copy. */
  CHECK(trtalloc_reallocate(pool, first, 0, 2000) == NULL);
  memset(first, 1, 1000);
  memset(second, 2, 1000);
  CHECK(((unsigned char *)first)[999] == 1 && ((unsigned char *)second)[0] == 2);
  trtalloc_stats stats;
  CHECK(trtalloc_stats_get(pool, -1, &stats, sizeof stats) == TRTALLOC_STATUS_OK);
  CHECK(stats.requested == 2000 && stats.allocated == 2 * 1088 && stats.reserved <= sizeof memory);
  CHECK(trtalloc_allocate(pool, sizeof memory, 0, 0) == NULL);
  CHECK(trtalloc_deallocate(pool, first) && !trtalloc_deallocate(pool, first));
  CHECK(!trtalloc_deallocate(pool, memory) && trtalloc_deallocate(pool, NULL));
  /* A tag's books hold without a driver, too. */
  trtalloc_set_tag("camera");
  void *tagged = trtalloc_allocate(pool, 5000, 0, 0);
  trtalloc_set_tag(NULL);
  CHECK(tagged != NULL && trtalloc_deallocate(pool, tagged));
  /* What is out when the pool is closed stays valid, and goes back. */
  trtalloc_destroy(pool);
  CHECK(trtalloc_allocate(pool, 8, 0, 0) == NULL);
  ((unsigned char *)second)[999] = 3;
  CHECK(trtalloc_deallocate(pool, second));
}

int main(int argc, char **argv) {
  over("driver=none,rule=ascend");
  trtalloc_allocator *pool = NULL;
  CHECK(argc == 2);
  if (strcmp(argv[1], "works") == 0) {
    over("rule=ascend");
    return 0;
  }
  /* A driver that cannot be used by us may be in use by others: their work would not be known. */
  CHECK(trtalloc_create_from(memory, sizeof memory, NULL, &pool) == TRTALLOC_STATUS_DRIVER && pool == NULL);
  CHECK(strstr(trtalloc_last_error(), argv[1]) != NULL);
  return 0;
}
