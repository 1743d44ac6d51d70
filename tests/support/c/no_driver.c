/* Where the environment names a driver that is not there, every request gets NULL for the same reason. */
#include <string.h>

#include "check.h"

int main(void) {
  trtalloc_allocator *own = trtalloc_default();
  char first[512];
  REFUSED(trtalloc_allocate(own, 8, 0, 0), TRTALLOC_STATUS_DRIVER);
  strncpy(first, trtalloc_last_error(), sizeof first - 1);
  first[sizeof first - 1] = 0;
  CHECK(first[0] != 0);
  REFUSED(trtalloc_ort_alloc(0), TRTALLOC_STATUS_INVALID_ARGUMENT);
  REFUSED(trtalloc_torch_malloc(8, 0, NULL), TRTALLOC_STATUS_DRIVER);
  CHECK(strcmp(first, trtalloc_last_error()) == 0);
  CHECK(trtalloc_deallocate(own, NULL));
  CHECK(!trtalloc_deallocate(own, first));
  CHECK(trtalloc_set_limit(own, -1, 1) == TRTALLOC_STATUS_DRIVER);
  return 0;
}
