/* A destroyed allocator does not call its out-of-memory handler any more, since the handler's context may be gone. */
#include <string.h>

#include "check.h"

static bool count(void *context, int32_t device, uint64_t size) {
  (void)device, (void)size;
  ++*(int *)context;
  return false;
}

int main(void) {
  static const uint64_t mib = 1 << 20, too_much = (uint64_t)1 << 40;
  trtalloc_allocator *allocator = NULL;
  int calls = 0;
  void *block;
  CHECK(trtalloc_create("driver=sim,log=off,wait_ms=0", &allocator) == TRTALLOC_STATUS_OK);
  block = trtalloc_allocate(allocator, mib, 0, TRTALLOC_RESIZABLE);
  CHECK(block != NULL);
  trtalloc_set_tag("model");
  CHECK(trtalloc_set_tag_limit(allocator, -1, "model", 2 * mib) == TRTALLOC_STATUS_OK);
  CHECK(trtalloc_on_oom(allocator, count, &calls) == TRTALLOC_STATUS_OK);
  REFUSED(trtalloc_reallocate(allocator, block, 0, too_much), TRTALLOC_STATUS_OUT_OF_MEMORY);
  REFUSED(trtalloc_allocate(allocator, 4 * mib, 0, 0), TRTALLOC_STATUS_OUT_OF_MEMORY);
  CHECK(calls == 2);

  trtalloc_destroy(allocator);
  REFUSED(trtalloc_reallocate(allocator, block, 0, too_much), TRTALLOC_STATUS_INVALID_ARGUMENT);
  REFUSED(trtalloc_reallocate(allocator, block, 0, 8 * mib), TRTALLOC_STATUS_INVALID_ARGUMENT);
  REFUSED(trtalloc_allocate(allocator, 4 * mib, 0, 0), TRTALLOC_STATUS_INVALID_ARGUMENT);
  CHECK(strstr(trtalloc_last_error(), "destroyed") != NULL);
  REFUSED(trtalloc_allocate_async(allocator, 4 * mib, 0, 0, NULL), TRTALLOC_STATUS_INVALID_ARGUMENT);
  CHECK(calls == 2);
  CHECK(trtalloc_deallocate(allocator, block));
  return 0;
}
