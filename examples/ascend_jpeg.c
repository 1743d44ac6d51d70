/* Pictures on Ascend: files are uploaded, decoded, scaled and passed to a model, on two streams, from one block of media memory
 * and one of pinned host memory.
 *
 *     cc -std=c99 ascend_jpeg.c $(pkg-config --cflags --libs trtalloc) -lascendcl -lacl_dvpp -o jpeg
 *
 * The example is about memory. A copy on the same stream stands for acldvppJpegDecodeAsync, acldvppVpcResizeAsync and
 * aclmdlExecuteAsync. Like them, it is queued, and reads and writes some time later. */
#include <string.h>
#include <trtalloc/trtalloc.h>

#include "ascend_calls.h"

enum { PICTURES = 64, STREAMS = 2, INPUT = 224 * 224 * 3 / 2, SCORES = 4000, ROOM = 24 << 20, HOST_ROOM = 1 << 20 };

/* A picture's file, and its decoded form: YUV420SP in lines of 128 pixels, 16 lines at a time. */
static size_t file_bytes(int number) { return 40000 + (size_t)(number % 7) * 9001; }
static size_t picture_bytes(int number) {
  size_t const width = 640 + (size_t)(number % 5) * 240, height = 480 + (size_t)(number % 3) * 300;
  return (width + 127) / 128 * 128 * ((height + 15) / 16 * 16) * 3 / 2;
}

/* Stands for each unit: fills its output with the first byte of its input. */
static void unit(void *to, size_t room, void const *from, size_t bytes, aclrtStream stream) {
  ACL(aclrtMemcpyAsync(to, room, from, bytes < room ? bytes : room, ACL_MEMCPY_DEVICE_TO_DEVICE, stream));
}

static void *get(trtalloc_allocator *pool, size_t bytes, aclrtStream stream) {
  void *block = trtalloc_allocate_async(pool, bytes, 0, 0, stream);
  MEMORY(block != NULL);
  return block;
}

static void one_picture(trtalloc_allocator *pool, trtalloc_allocator *host, int number, void *result, aclrtStream stream) {
  /* The host may write the file at once: no stream still reads this memory. */
  size_t const bytes = file_bytes(number);
  void *upload = trtalloc_allocate(host, bytes, 0, 0);
  MEMORY(upload != NULL);
  memset(upload, number, bytes);
  void *file = get(pool, bytes, stream);
  ACL(aclrtMemcpyAsync(file, bytes, upload, bytes, ACL_MEMCPY_HOST_TO_DEVICE, stream));
  MEMORY(trtalloc_deallocate_async(host, upload, stream));

  /* acldvppJpegDecodeAsync(channel, file, bytes, picture's description, stream) */
  void *picture = get(pool, picture_bytes(number), stream);
  unit(picture, picture_bytes(number), file, bytes, stream);
  MEMORY(trtalloc_deallocate_async(pool, file, stream));

  /* acldvppVpcResizeAsync(channel, picture's description, input's description, how, stream) */
  void *input = get(pool, INPUT, stream);
  unit(input, INPUT, picture, bytes, stream);
  MEMORY(trtalloc_deallocate_async(pool, picture, stream));

  /* aclmdlExecuteAsync(model, input, scores, stream) */
  void *scores = get(pool, SCORES, stream);
  unit(scores, SCORES, input, SCORES, stream);
  MEMORY(trtalloc_deallocate_async(pool, input, stream));
  ACL(aclrtMemcpyAsync(result, SCORES, scores, SCORES, ACL_MEMCPY_DEVICE_TO_HOST, stream));
  MEMORY(trtalloc_deallocate_async(pool, scores, stream));
}

int main(void) {
  aclrtStream streams[STREAMS];
  ACL(aclInit(NULL));
  ACL(aclrtSetDevice(0));
  for (int at = 0; at < STREAMS; at++) {
    ACL(aclrtCreateStream(&streams[at]));
  }
  void *block = NULL, *pinned = NULL, *results = NULL;
  ACL(acldvppMalloc(&block, ROOM));
  ACL(aclrtMallocHost(&pinned, HOST_ROOM));
  ACL(aclrtMallocHost(&results, (size_t)PICTURES * SCORES));
  trtalloc_allocator *pool = NULL, *host = NULL;
  MEMORY(trtalloc_create_from(block, ROOM, "driver=ascend,rule=ascend-media", &pool) == TRTALLOC_STATUS_OK);
  MEMORY(trtalloc_create_from(pinned, HOST_ROOM, "driver=ascend,rule=ascend-host,kind=pinned", &host) ==
         TRTALLOC_STATUS_OK);

  for (int number = 0; number < PICTURES; number++) {
    one_picture(pool, host, number, (char *)results + (size_t)number * SCORES, streams[number % STREAMS]);
  }
  for (int at = 0; at < STREAMS; at++) {
    ACL(aclrtSynchronizeStream(streams[at]));
  }

  int wrong = 0;
  for (int number = 0; number < PICTURES; number++) {
    unsigned char const *const scores = (unsigned char const *)results + (size_t)number * SCORES;
    wrong += scores[0] != number || scores[SCORES - 1] != number;
  }
  trtalloc_stats stats;
  MEMORY(trtalloc_stats_get(pool, -1, &stats, sizeof stats) == TRTALLOC_STATUS_OK);
  printf("%d pictures on %d streams through %llu bytes: %llu out at most, %d wrong\n", PICTURES, STREAMS,
         (unsigned long long)stats.reserved, (unsigned long long)stats.allocated_peak, wrong);

  trtalloc_destroy(pool);
  trtalloc_destroy(host);
  ACL(acldvppFree(block));
  ACL(aclrtFreeHost(pinned));
  ACL(aclrtFreeHost(results));
  for (int at = 0; at < STREAMS; at++) {
    ACL(aclrtDestroyStream(streams[at]));
  }
  ACL(aclrtResetDevice(0));
  ACL(aclFinalize());
  return wrong != 0 || stats.allocated != 0;
}
