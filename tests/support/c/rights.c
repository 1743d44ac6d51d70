/* With another user's rights the environment is not to be trusted: the defaults hold. Status 77: nothing was gained. */
#include <sys/auxv.h>

#include "check.h"

int main(void) {
  trtalloc_stats stats;
  if (getauxval(AT_SECURE) == 0) return 77;
  CHECK(getenv("TRTALLOC_LIMIT") != NULL);
  CHECK(trtalloc_stats_get(trtalloc_default(), -1, &stats, sizeof stats) == TRTALLOC_STATUS_OK);
  CHECK(stats.limit == 0);
  trtalloc_allocator* own = NULL;
  CHECK(trtalloc_create("driver=sim", &own) == TRTALLOC_STATUS_OK);
  CHECK(trtalloc_stats_get(own, -1, &stats, sizeof stats) == TRTALLOC_STATUS_OK);
  CHECK(stats.limit == 0);
  trtalloc_destroy(own);
  return 0;
}
