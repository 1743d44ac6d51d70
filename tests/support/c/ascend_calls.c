/* Each of AscendCL's allocation functions, and pieces of its memory by its rule: as many as the manual's figures say, where
 * they say, and every owner writes all that is its own. */
#include <string.h>

#include "../../../examples/ascend_calls.h"
#include "check.h"

aclError aclrtMalloc(void **devPtr, size_t size, int policy);
aclError aclrtMallocAlign32(void **devPtr, size_t size, int policy);
aclError aclrtMallocCached(void **devPtr, size_t size, int policy);
aclError aclrtFree(void *devPtr);
aclError aclrtMemcpy(void *dst, size_t destMax, const void *src, size_t count, aclrtMemcpyKind kind);

enum { HUGE_FIRST = 0, HUGE1G_ONLY = 6, PIECES = 10, LENGTH = 1000, EXTENT = 1056 };

static aclError plain(void **out, size_t size) { return aclrtMalloc(out, size, HUGE_FIRST); }
static aclError giant(void **out, size_t size) { return aclrtMalloc(out, size, HUGE1G_ONLY); }
static aclError align32(void **out, size_t size) { return aclrtMallocAlign32(out, size, HUGE_FIRST); }
static aclError cached(void **out, size_t size) { return aclrtMallocCached(out, size, HUGE_FIRST); }
static aclError media(void **out, size_t size) { return hi_mpi_dvpp_malloc(0, out, size); }

static const struct {
  const char *call;
  aclError (*get)(void **, size_t);
  aclError (*put)(void *);
  const char *options;
  size_t start, stride;
} calls[] = {
    {"aclrtMalloc", plain, aclrtFree, "driver=ascend,rule=ascend", 64, 1088},
    {"aclrtMalloc, pages of 1 GiB", giant, aclrtFree, "driver=ascend,rule=ascend", 64, 1088},
    {"aclrtMallocAlign32", align32, aclrtFree, "driver=ascend", 64, 1088},
    {"aclrtMallocCached", cached, aclrtFree, "driver=ascend,rule=ascend", 64, 1088},
    {"acldvppMalloc", acldvppMalloc, acldvppFree, "driver=ascend,rule=ascend-media", 128, 1152},
    {"hi_mpi_dvpp_malloc", media, hi_mpi_dvpp_free, "driver=ascend,rule=ascend-media", 128, 1152},
    {"aclrtMallocHost", aclrtMallocHost, aclrtFreeHost, "driver=ascend,rule=ascend-host,kind=pinned", 64, 1088},
    {"aclrtMallocHost, no driver", aclrtMallocHost, aclrtFreeHost, "driver=none,rule=ascend-host", 64, 1088},
};

static void carve(size_t which) {
  size_t const stride = calls[which].stride, bytes = PIECES * stride;
  unsigned char *block = NULL, found[EXTENT];
  void *memory = NULL, *pieces[PIECES];
  ACL(calls[which].get(&memory, bytes));
  block = memory;
  trtalloc_allocator *pool = NULL;
  CHECK(trtalloc_create_from(block, bytes, calls[which].options, &pool) == TRTALLOC_STATUS_OK);
  for (int at = 0; at < PIECES; at++) {
    pieces[at] = trtalloc_allocate(pool, LENGTH, 0, 0);
    CHECK(pieces[at] != NULL);
    size_t const offset = (size_t)((unsigned char *)pieces[at] - block);
    CHECK((uintptr_t)pieces[at] % calls[which].start == 0 && offset % stride == 0 && offset < bytes);
  }
  CHECK(trtalloc_allocate(pool, 1, 0, 0) == NULL);
  for (int at = 0; at < PIECES; at++) {
    ACL(aclrtMemset(pieces[at], EXTENT, at + 1, EXTENT));
  }
  for (int at = 0; at < PIECES; at++) {
    ACL(aclrtMemcpy(found, EXTENT, pieces[at], EXTENT, ACL_MEMCPY_DEVICE_TO_HOST));
    for (int byte = 0; byte < EXTENT; byte++) {
      CHECK(found[byte] == at + 1);
    }
  }
  trtalloc_stats stats;
  CHECK(trtalloc_stats_get(pool, -1, &stats, sizeof stats) == TRTALLOC_STATUS_OK);
  CHECK(stats.requested == PIECES * LENGTH && stats.allocated == bytes && stats.reserved == bytes);
  for (int at = 0; at < PIECES; at++) {
    CHECK(trtalloc_deallocate(pool, pieces[at]));
  }
  void *all = trtalloc_allocate(pool, bytes - 64, 0, 0);
  CHECK(all == block && trtalloc_deallocate(pool, all));
  trtalloc_destroy(pool);
  ACL(calls[which].put(block));
}

int main(void) {
  ACL(aclInit(NULL));
  ACL(aclrtSetDevice(0));
  for (size_t which = 0; which < sizeof calls / sizeof *calls; which++) {
    carve(which);
    printf("%s: %d pieces, 0 wrong\n", calls[which].call, (int)PIECES);
  }
  ACL(aclrtResetDevice(0));
  ACL(aclFinalize());
  return 0;
}
