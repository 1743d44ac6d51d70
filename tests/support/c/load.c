/* A server whose history becomes a trace: weights without a stream, and two threads that serve requests on streams of their
   own, with an output that grows. One block is on the legacy default stream. What is recorded is in the environment. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>

#include "check.h"

enum { REQUESTS = 200, MIB = 1 << 20 };

static int (*create_stream)(void **, unsigned);
static int (*set_context)(void *);
static void *context;

static void *serve(void *unused) {
  trtalloc_allocator *memory = trtalloc_default();
  void *stream = NULL;
  (void)unused;
  CHECK(set_context(context) == 0);
  CHECK(create_stream(&stream, 1) == 0);
  for (uint64_t request = 0; request < REQUESTS; request++) {
    void *scratch = trtalloc_allocate_async(memory, (1 + request % 8) * MIB, 0, 0, stream);
    void *output = trtalloc_allocate_async(memory, MIB, 0, TRTALLOC_RESIZABLE, stream);
    CHECK(scratch && output);
    output = trtalloc_reallocate(memory, output, 0, 3 * MIB);
    CHECK(output);
    CHECK(trtalloc_deallocate_async(memory, scratch, stream));
    CHECK(trtalloc_deallocate_async(memory, output, stream));
  }
  return NULL;
}

int main(void) {
  trtalloc_allocator *memory = trtalloc_default();
  void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
  int (*init)(unsigned), (*retain)(void **, int);
  pthread_t threads[2];
  CHECK(library);
  *(void **)&init = dlsym(library, "cuInit");
  *(void **)&retain = dlsym(library, "cuDevicePrimaryCtxRetain");
  *(void **)&set_context = dlsym(library, "cuCtxSetCurrent");
  *(void **)&create_stream = dlsym(library, "cuStreamCreate");
  CHECK(init && retain && set_context && create_stream);
  CHECK(init(0) == 0 && retain(&context, 0) == 0 && set_context(context) == 0);
  void *weights = trtalloc_allocate(memory, 48 * MIB, 0, 0);
  void *on_default = trtalloc_allocate_async(memory, MIB, 0, 0, NULL);
  CHECK(weights && on_default);
  for (int at = 0; at < 2; at++) CHECK(pthread_create(&threads[at], NULL, serve, NULL) == 0);
  for (int at = 0; at < 2; at++) CHECK(pthread_join(threads[at], NULL) == 0);
  CHECK(trtalloc_deallocate_async(memory, on_default, NULL));
  CHECK(trtalloc_deallocate(memory, weights));
  CHECK(trtalloc_snapshot(memory, getenv("SNAPSHOT")) == TRTALLOC_STATUS_OK);
  return 0;
}
