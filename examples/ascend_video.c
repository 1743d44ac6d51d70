/* Video on Ascend: decoded frames feed a model, all from one block of media memory.
 *
 *     cc -std=c99 ascend_video.c $(pkg-config --cflags --libs trtalloc) -lascendcl -lacl_dvpp_mpi -o video
 *
 * The example is about memory; hi_mpi_sys_init and other initialisation are left out. A fill that has completed when the call
 * returns stands for the decoder, as hi_mpi_vdec_get_frame guarantees for a frame. Fills and a copy on a stream stand for the
 * model, as aclmdlExecuteAsync queues its work. */
#include <trtalloc/trtalloc.h>

#include "ascend_calls.h"

enum { WIDTH = 1920, HEIGHT = 1080, FRAMES = 60, PACKET = 96 << 10, SCORES = 4000, WORK = 8 << 20, ROOM = 24 << 20 };

/* YUV420SP: lines of 16 pixels, an even number of them. */
static size_t frame_bytes(void) { return (size_t)(WIDTH + 15) / 16 * 16 * ((HEIGHT + 1) / 2 * 2) * 3 / 2; }

/* Stands for hi_mpi_vdec_send_stream and hi_mpi_vdec_get_frame: the decoder uses no stream, and has finished with the packet and
 * the frame when it returns. This one fills the frame with its number. */
static void decode(void *packet, void *frame, int number) {
  ACL(aclrtMemset(packet, PACKET, number, PACKET));
  ACL(aclrtMemset(frame, frame_bytes(), number, frame_bytes()));
}

/* Stands for aclmdlExecuteAsync: the work is queued, and reads the frame some time later. It takes longer than the decoder, so
 * frames would queue up if there were room for all of them. */
static void infer(void *work, void const *frame, void *scores, aclrtStream stream) {
  size_t const behind = frame_bytes() - SCORES;
  for (int layer = 0; layer < 8; layer++) {
    ACL(aclrtMemsetAsync(work, WORK, layer, WORK, stream));
  }
  ACL(aclrtMemcpyAsync(scores, SCORES, (char const *)frame + behind, SCORES, ACL_MEMCPY_DEVICE_TO_DEVICE, stream));
}

int main(void) {
  aclrtStream stream = NULL;
  ACL(aclInit(NULL));
  ACL(aclrtSetDevice(0));
  ACL(aclrtCreateStream(&stream));

  /* One block of media memory, from which the pool allocates everything by its rule. */
  void *block = NULL;
  ACL(hi_mpi_dvpp_malloc(0, &block, ROOM));
  trtalloc_allocator *pool = NULL;
  MEMORY(trtalloc_create_from(block, ROOM, "driver=ascend,rule=ascend-media", &pool) == TRTALLOC_STATUS_OK);
  /* The model's work memory, as aclmdlLoadFromFileWithMem needs it. */
  void *work = trtalloc_allocate(pool, WORK, 0, 0);
  MEMORY(work != NULL);
  void *host = NULL;
  ACL(aclrtMallocHost(&host, (size_t)FRAMES * SCORES));
  unsigned char *const results = (unsigned char *)host;

  for (int number = 0; number < FRAMES; number++) {
    /* For the decoder, which uses the memory at once: the model no longer reads it. */
    void *packet = trtalloc_allocate(pool, PACKET, 0, 0);
    void *frame = trtalloc_allocate(pool, frame_bytes(), 0, 0);
    MEMORY(packet != NULL && frame != NULL);
    decode(packet, frame, number);
    MEMORY(trtalloc_deallocate(pool, packet));

    void *scores = trtalloc_allocate_async(pool, SCORES, 0, 0, stream);
    MEMORY(scores != NULL);
    infer(work, frame, scores, stream);
    ACL(aclrtMemcpyAsync(results + (size_t)number * SCORES, SCORES, scores, SCORES, ACL_MEMCPY_DEVICE_TO_HOST, stream));
    /* The model has not run yet. Both are freed on its stream, and nothing waits here. */
    MEMORY(trtalloc_deallocate_async(pool, frame, stream));
    MEMORY(trtalloc_deallocate_async(pool, scores, stream));
  }
  ACL(aclrtSynchronizeStream(stream));

  MEMORY(trtalloc_deallocate(pool, work));

  int wrong = 0;
  for (int number = 0; number < FRAMES; number++) {
    unsigned char const *const scores = results + (size_t)number * SCORES;
    wrong += scores[0] != number || scores[SCORES - 1] != number;
  }
  trtalloc_stats stats;
  MEMORY(trtalloc_stats_get(pool, -1, &stats, sizeof stats) == TRTALLOC_STATUS_OK);
  printf("%d frames of %zu bytes through %llu bytes: %llu out at most, %d wrong\n", FRAMES, frame_bytes(),
         (unsigned long long)stats.reserved, (unsigned long long)stats.allocated_peak, wrong);

  trtalloc_destroy(pool);
  ACL(hi_mpi_dvpp_free(block));
  ACL(aclrtFreeHost(host));
  ACL(aclrtDestroyStream(stream));
  ACL(aclrtResetDevice(0));
  ACL(aclFinalize());
  return wrong != 0 || stats.allocated != 0;
}
