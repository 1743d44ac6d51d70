/* A limit in percent before the first request: 0 while the process does not use CUDA, since a call of statistics does not
   initialize it; from then on its bytes. The device's memory is 1 GiB, and the limit 50 %. */
#include <dlfcn.h>
#include <string.h>

#include "check.h"

static void expect(int32_t device, uint64_t limit) {
  char json[4096], field[64];
  trtalloc_stats stats;
  CHECK(trtalloc_stats_get(trtalloc_default(), device, &stats, sizeof stats) == TRTALLOC_STATUS_OK);
  CHECK(stats.limit == limit && stats.driver_calls == 0 && stats.reserved == 0);
  snprintf(field, sizeof field, "\"limit\":%llu,", (unsigned long long)limit);
  CHECK(trtalloc_stats_json(trtalloc_default(), device, json, sizeof json) > 0 && strstr(json, field) != NULL);
}

int main(void) {
  const uint64_t half = (uint64_t)512 << 20;
  void *driver, *found, *block;
  int (*initialize)(unsigned);
  expect(-1, 0);
  expect(0, 0);
  CHECK(dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD) == NULL);

  /* Loaded, and not initialized. */
  driver = dlopen("libcuda.so.1", RTLD_NOW);
  CHECK(driver != NULL);
  expect(-1, 0);
  expect(0, 0);

  /* Without a context the first request goes to device 0. */
  found = dlsym(driver, "cuInit");
  CHECK(found != NULL);
  memcpy(&initialize, &found, sizeof initialize);
  CHECK(initialize(0) == 0);
  expect(-1, half);
  expect(0, half);
  expect(60, 0);

  block = trtalloc_allocate(trtalloc_default(), 4096, 0, 0);
  CHECK(block != NULL);
  {
    trtalloc_stats stats;
    CHECK(trtalloc_stats_get(trtalloc_default(), 0, &stats, sizeof stats) == TRTALLOC_STATUS_OK && stats.limit == half);
  }
  CHECK(trtalloc_deallocate(trtalloc_default(), block));
  return 0;
}
