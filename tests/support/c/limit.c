/* The limit is known from the beginning: as created, as set, and as the environment has it for every allocator. */
#include <string.h>

#include "check.h"

static uint64_t limit_of(trtalloc_allocator *allocator) {
  trtalloc_stats stats;
  CHECK(trtalloc_stats_get(allocator, -1, &stats, sizeof stats) == TRTALLOC_STATUS_OK);
  CHECK(stats.driver_calls == 0 && stats.reserved == 0);
  return stats.limit;
}

static void created(const char *options, uint64_t limit) {
  trtalloc_allocator *allocator;
  void *block;
  CHECK(trtalloc_create(options, &allocator) == TRTALLOC_STATUS_OK);
  CHECK(limit_of(allocator) == limit);
  block = trtalloc_allocate(allocator, 4096, 0, 0);
  CHECK(block != NULL && trtalloc_deallocate(allocator, block));
  CHECK(trtalloc_trim(allocator, 0, 0, NULL) == TRTALLOC_STATUS_OK);
  trtalloc_destroy(allocator);
}

static void set(void) {
  trtalloc_allocator *allocator;
  trtalloc_stats stats;
  CHECK(trtalloc_create("driver=sim,limit=1GiB", &allocator) == TRTALLOC_STATUS_OK);
  CHECK(trtalloc_set_limit(allocator, 0, 5000000) == TRTALLOC_STATUS_OK);
  CHECK(trtalloc_stats_get(allocator, 0, &stats, sizeof stats) == TRTALLOC_STATUS_OK && stats.limit == 5000000);
  CHECK(trtalloc_set_limit(allocator, -1, 0) == TRTALLOC_STATUS_OK);
  CHECK(trtalloc_stats_get(allocator, 0, &stats, sizeof stats) == TRTALLOC_STATUS_OK && stats.limit == 0);
  trtalloc_destroy(allocator);
}

int main(void) {
  trtalloc_allocator *own = trtalloc_default();
  const char *expected = getenv("TRTALLOC_TEST_LIMIT");
  char json[4096];
  trtalloc_stats stats;
  created("driver=sim,limit=4GB", 4000000000u);
  created("driver=sim,limit=500MB", 500000000u);
  created("driver=sim,limit=4GiB", (uint64_t)4 << 30);
  created("driver=sim,sim_memory=1GiB,limit=25%", 256 << 20);
  set();

  CHECK(expected != NULL);
  created("driver=sim", strtoull(expected, NULL, 10));
  created(NULL, strtoull(expected, NULL, 10));
  created("limit=none", 0);
  CHECK(limit_of(own) == strtoull(expected, NULL, 10));
  CHECK(trtalloc_stats_json(own, -1, json, sizeof json) > 0 && strstr(json, expected) != NULL);
  CHECK(trtalloc_deallocate(own, trtalloc_allocate(own, 4096, 0, 0)));
  CHECK(trtalloc_stats_get(own, -1, &stats, sizeof stats) == TRTALLOC_STATUS_OK);
  CHECK(stats.limit == strtoull(expected, NULL, 10));
  return 0;
}
