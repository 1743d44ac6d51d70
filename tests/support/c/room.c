/* Memory that others hold and memory that stays free for them, as docs/memory-not-asked-for.md and docs/leave-memory.md show
   it: over CUDA, with 3 GiB that this process takes past the allocator. */
#include <dlfcn.h>
#include <string.h>

#include "check.h"

enum { BLOCKS = 64 };
static const uint64_t GIB = (uint64_t)1 << 30;

static void *entry(void *library, const char *name) {
  void *found = dlsym(library, name);
  if (found == NULL) {
    fprintf(stderr, "%s is not there\n", name);
    exit(1);
  }
  return found;
}

/* A call of the driver, whose functions return 0. */
#define CALL(library, name, parameters, arguments)                                                     \
  do {                                                                                                 \
    int(*call) parameters = NULL;                                                                      \
    void *const found = entry(library, name);                                                          \
    memcpy(&call, &found, sizeof call);                                                                \
    CHECK(call arguments == 0);                                                                        \
  } while (0)

static void show(trtalloc_allocator *memory) {
  trtalloc_stats now;
  CHECK(trtalloc_stats_get(memory, -1, &now, sizeof now) == TRTALLOC_STATUS_OK);
  fprintf(stderr, "%.0f MiB: this allocator\n%.0f MiB: others\n%.0f MiB: free\n%.0f MiB: available\n",
          (double)now.reserved / 1048576.0, (double)now.held_by_others / 1048576.0,
          (double)now.device_free / 1048576.0, (double)now.available / 1048576.0);
}

int main(void) {
  void *const driver = dlopen("libcuda.so.1", RTLD_NOW);
  void *context = NULL, *blocks[BLOCKS];
  uint64_t theirs = 0;
  trtalloc_allocator *memory = NULL;
  int count = 0;
  CHECK(driver != NULL);
  CALL(driver, "cuInit", (unsigned), (0));
  CALL(driver, "cuDevicePrimaryCtxRetain", (void **, int), (&context, 0));
  CALL(driver, "cuCtxSetCurrent", (void *), (context));
  CALL(driver, "cuMemAlloc_v2", (uint64_t *, size_t), (&theirs, 3 * GIB));

  CHECK(trtalloc_create("headroom=2GiB,wait_ms=0", &memory) == TRTALLOC_STATUS_OK);
  while (count < BLOCKS && (blocks[count] = trtalloc_allocate(memory, GIB, 0, 0)) != NULL) ++count;
  CHECK(count > 0 && count < BLOCKS && trtalloc_last_status() == TRTALLOC_STATUS_OUT_OF_MEMORY);
  fprintf(stderr, "%s\n", trtalloc_last_error());
  show(memory);

  /* Large blocks go back as they are freed. */
  while (count > 0) CHECK(trtalloc_deallocate(memory, blocks[--count]));
  show(memory);
  trtalloc_destroy(memory);
  CALL(driver, "cuMemFree_v2", (uint64_t), (theirs));
  return 0;
}
