/* Memory through the C ABI, over the simulated device: the environment has TRTALLOC_DRIVER=sim. */
#include <string.h>

#include "check.h"

#define MIB ((uint64_t)1 << 20)

static trtalloc_stats stats_of(trtalloc_allocator *a) {
  trtalloc_stats stats;
  CHECK(trtalloc_stats_get(a, -1, &stats, sizeof stats) == TRTALLOC_STATUS_OK);
  return stats;
}

static trtalloc_allocator *create(const char *options) {
  trtalloc_allocator *a = NULL;
  CHECK(trtalloc_create(options, &a) == TRTALLOC_STATUS_OK && a != NULL);
  return a;
}

static void blocks(void) {
  trtalloc_allocator *a = create("driver=sim,sim_memory=1GiB");
  trtalloc_stats stats;
  char *block, *other;
  uint64_t alignment, released = 0;

  block = trtalloc_allocate(a, 1000, 0, 0);
  CHECK(block != NULL);
  other = trtalloc_allocate(a, 1000, 0, 0);
  CHECK(other != NULL && other != block);
  stats = stats_of(a);
  CHECK(stats.allocations == 2 && stats.frees == 0 && stats.requested == 2000);
  CHECK(stats.allocated >= 2000 && stats.allocated_peak == stats.allocated && stats.reserved >= stats.allocated);

  REFUSED(trtalloc_deallocate(a, block + 1), TRTALLOC_STATUS_INVALID_ARGUMENT);
  REFUSED(trtalloc_deallocate(a, &block), TRTALLOC_STATUS_INVALID_ARGUMENT);
  CHECK(trtalloc_deallocate(a, block));
  CHECK(!trtalloc_deallocate(a, block));
  CHECK(trtalloc_deallocate(a, other));
  stats = stats_of(a);
  CHECK(stats.allocated == 0 && stats.requested == 0 && stats.frees == 2 && stats.allocated_peak >= 2000);
  CHECK(trtalloc_stats_reset_peaks(a, -1) == TRTALLOC_STATUS_OK);
  CHECK(stats_of(a).allocated_peak == 0);

  for (alignment = 1; alignment <= 2 * MIB; alignment *= 2) {
    block = trtalloc_allocate(a, 100, alignment, 0);
    CHECK(block != NULL && (uintptr_t)block % alignment == 0);
    CHECK(trtalloc_deallocate(a, block));
  }
  REFUSED(trtalloc_allocate(a, 100, 3, 0), TRTALLOC_STATUS_INVALID_ARGUMENT);
  REFUSED(trtalloc_allocate(a, 100, 4096 * MIB, 0), TRTALLOC_STATUS_INVALID_ARGUMENT);
  CHECK(trtalloc_deallocate(a, trtalloc_allocate(a, 100, 0, 6)) && strstr(trtalloc_last_error(), "flags") == NULL);
  REFUSED(trtalloc_allocate(a, (uint64_t)1 << 63, 0, 0), TRTALLOC_STATUS_OUT_OF_MEMORY);
  REFUSED(trtalloc_allocate(a, 0, 0, 0), TRTALLOC_STATUS_INVALID_ARGUMENT);
  REFUSED(trtalloc_allocate(a, UINT64_MAX, 0, 0), TRTALLOC_STATUS_OUT_OF_MEMORY);
  REFUSED(trtalloc_allocate(a, 2048 * MIB, 0, 0), TRTALLOC_STATUS_OUT_OF_MEMORY);
  CHECK(strstr(trtalloc_last_error(), "out of memory") != NULL);
  CHECK(stats_of(a).out_of_memory >= 3);

  CHECK(trtalloc_trim(a, -1, 0, &released) == TRTALLOC_STATUS_OK);
  CHECK(stats_of(a).reserved == 0 && released > 0);
  trtalloc_destroy(a);
}

static void streams(void) {
  trtalloc_allocator *a = create("driver=sim");
  char *block = trtalloc_allocate_async(a, 4096, 256, 0, NULL);
  char *again;
  CHECK(block != NULL);
  CHECK(trtalloc_record_stream(a, block, NULL) == TRTALLOC_STATUS_OK);
  CHECK(trtalloc_record_stream(a, block + 8, NULL) == TRTALLOC_STATUS_INVALID_ARGUMENT);
  CHECK(trtalloc_deallocate_async(a, block, NULL));
  CHECK(!trtalloc_deallocate_async(a, block, NULL));
  block = trtalloc_allocate_async(a, 4096, 256, 0, NULL);
  CHECK(block != NULL && trtalloc_deallocate_async(a, block, NULL));
  /* What a stream freed serves the stream again at once. */
  again = trtalloc_allocate_async(a, 4096, 256, 0, NULL);
  CHECK(again == block);
  CHECK(trtalloc_deallocate_async(a, again, NULL));
  block = trtalloc_allocate_on(a, 0, 4096, 0, 0, NULL);
  CHECK(block != NULL && trtalloc_deallocate(a, block));
  REFUSED(trtalloc_allocate_on(a, 99, 4096, 0, 0, NULL), TRTALLOC_STATUS_INVALID_ARGUMENT);
  CHECK(trtalloc_stream_release(a, NULL) == TRTALLOC_STATUS_OK);
  CHECK(stats_of(a).allocated == 0);
  trtalloc_destroy(a);
}

static void resizable(void) {
  trtalloc_allocator *a = create("driver=sim");
  char *block = trtalloc_allocate(a, MIB, 0, TRTALLOC_RESIZABLE);
  char *fixed = trtalloc_allocate(a, MIB, 0, 0);
  CHECK(block != NULL && fixed != NULL);
  block = trtalloc_reallocate(a, block, 0, 5 * MIB);
  CHECK(block != NULL);
  block = trtalloc_reallocate(a, block, 0, 2 * MIB);
  CHECK(block != NULL);
  CHECK(stats_of(a).reallocations == 2 && stats_of(a).bytes_copied == 0);
  REFUSED(trtalloc_reallocate(a, fixed, 0, 2 * MIB), TRTALLOC_STATUS_INVALID_ARGUMENT);
  REFUSED(trtalloc_reallocate(a, block, 0, (uint64_t)1 << 62), TRTALLOC_STATUS_OUT_OF_MEMORY);
  REFUSED(trtalloc_reallocate(a, &block, 0, MIB), TRTALLOC_STATUS_INVALID_ARGUMENT);
  CHECK(trtalloc_deallocate(a, block));
  /* The alignment is that of the allocation, or 0, which keeps it. */
  block = trtalloc_allocate(a, MIB, 4096, TRTALLOC_RESIZABLE);
  CHECK(block != NULL);
  block = trtalloc_reallocate(a, block, 4096, 9 * MIB);
  CHECK(block != NULL && (uintptr_t)block % 4096 == 0);
  block = trtalloc_reallocate(a, block, 0, 400 * MIB);
  CHECK(block != NULL && (uintptr_t)block % 4096 == 0);
  REFUSED(trtalloc_reallocate(a, block, 8192, 9 * MIB), TRTALLOC_STATUS_INVALID_ARGUMENT);
  CHECK(trtalloc_deallocate(a, block) && trtalloc_deallocate(a, fixed));
  trtalloc_destroy(a);
}

static void limits(void) {
  trtalloc_allocator *a = create("driver=sim,limit=64MiB");
  void *block;
  REFUSED(trtalloc_allocate(a, 80 * MIB, 0, 0), TRTALLOC_STATUS_OUT_OF_MEMORY);
  CHECK(trtalloc_set_limit(a, -1, 128 * MIB) == TRTALLOC_STATUS_OK);
  block = trtalloc_allocate(a, 80 * MIB, 0, 0);
  CHECK(trtalloc_last_status() == TRTALLOC_STATUS_OUT_OF_MEMORY); /* as it was */
  CHECK(block != NULL && stats_of(a).limit == 128 * MIB && stats_of(a).reserved <= 128 * MIB);
  CHECK(trtalloc_deallocate(a, block));
  CHECK(trtalloc_set_limit(a, -1, 0) == TRTALLOC_STATUS_OK && stats_of(a).limit == 0);
  trtalloc_destroy(a);
}

static void closed(void) {
  trtalloc_allocator *a = create("driver=sim");
  void *block = trtalloc_allocate(a, MIB, 0, 0);
  CHECK(block != NULL);
  trtalloc_destroy(a);
  trtalloc_destroy(a);
  REFUSED(trtalloc_allocate(a, MIB, 0, 0), TRTALLOC_STATUS_INVALID_ARGUMENT);
  CHECK(trtalloc_deallocate(a, block));
  REFUSED(trtalloc_deallocate(a, block), TRTALLOC_STATUS_INVALID_ARGUMENT);
  CHECK(trtalloc_tensorrt_allocator(a, 110400) != NULL);
  trtalloc_destroy(a);
}

static void frameworks(void) {
  trtalloc_allocator *own = trtalloc_default();
  void *block = trtalloc_torch_malloc(1000, 0, NULL);
  CHECK(block != NULL);
  trtalloc_torch_record_stream(block, NULL);
  trtalloc_torch_free(block, 1000, 0, NULL);
  CHECK((block = trtalloc_ort_alloc(1000)) != NULL);
  trtalloc_ort_free(block);
  CHECK((block = trtalloc_cupy_malloc(NULL, 1000, 0)) != NULL);
  trtalloc_cupy_free(NULL, block, 0);
  CHECK(stats_of(own).allocations == 3 && stats_of(own).frees == 3 && stats_of(own).allocated == 0);
  trtalloc_ort_empty_cache();
  CHECK(stats_of(own).reserved == 0);
  /* The process's own outlives an attempt to destroy it. */
  trtalloc_destroy(own);
  CHECK((block = trtalloc_allocate(own, 1000, 0, 0)) != NULL && trtalloc_deallocate(own, block));
}

int main(void) {
  blocks();
  streams();
  resizable();
  limits();
  closed();
  frameworks();
  return 0;
}
