/* A pool for GPU memory from C: blocks that are freed on a stream, and one that grows without a copy.
 *
 *     cc -std=c99 main.c $(pkg-config --cflags --libs trtalloc) -o pool
 *     ./pool                 on the GPU that is here
 *     ./pool driver=sim      on the simulated device
 */
#include <stdio.h>
#include <trtalloc/trtalloc.h>

int main(int argc, char **argv) {
  const char *options = argc > 1 ? argv[1] : "limit=1GiB";
  trtalloc_allocator *memory = NULL;
  if (trtalloc_create(options, &memory) != TRTALLOC_STATUS_OK) {
    fprintf(stderr, "no allocator: %s\n", trtalloc_last_error());
    return 1;
  }

  /* A cudaStream_t; NULL is the default stream. */
  void *stream = NULL;
  void *first = trtalloc_allocate_async(memory, 3 << 20, 0, 0, stream);
  if (first == NULL) {
    fprintf(stderr, "no memory: %s\n", trtalloc_last_error());
    trtalloc_destroy(memory);
    return 1;
  }
  /* Kernels and copies that use the block are queued on the stream here. Then the block is freed without waiting for them. */
  trtalloc_deallocate_async(memory, first, stream);
  /* The stream runs in order, so its next work can reuse the same memory. */
  void *second = trtalloc_allocate_async(memory, 3 << 20, 0, 0, stream);
  printf("reused at once: %s\n", first == second ? "yes" : "no");
  trtalloc_deallocate_async(memory, second, stream);

  void *block = trtalloc_allocate(memory, 1 << 20, 0, TRTALLOC_RESIZABLE);
  void *larger = trtalloc_reallocate(memory, block, 0, 64 << 20);
  /* On failure the result is NULL, and `block` is unchanged. */
  if (larger != NULL) {
    block = larger;
  }

  trtalloc_stats stats;
  if (trtalloc_stats_get(memory, -1, &stats, sizeof stats) == TRTALLOC_STATUS_OK) {
    printf("grown to 64 MiB: %s, %llu bytes copied\n", larger != NULL ? "yes" : "no",
           (unsigned long long)stats.bytes_copied);
    printf("in use %llu bytes, reserved %llu bytes\n", (unsigned long long)stats.allocated,
           (unsigned long long)stats.reserved);
  }
  trtalloc_deallocate(memory, block);
  trtalloc_destroy(memory);
  return 0;
}
