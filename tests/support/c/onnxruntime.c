/* The pool as an allocator that real ONNX Runtime shares, over the simulated device: C and C++. */
#include <trtalloc/onnxruntime.h>

#include <stdlib.h>

#define CHECK(condition)                                               \
  do {                                                                 \
    if (!(condition)) {                                                \
      fprintf(stderr, "line %d: %s\n", __LINE__, #condition);          \
      abort();                                                         \
    }                                                                  \
  } while (0)

static const OrtApi *api;

static void ok(OrtStatus *status) {
  if (status != NULL) {
    fprintf(stderr, "%s\n", api->GetErrorMessage(status));
    abort();
  }
}

static uint64_t allocated(void) {
  trtalloc_stats stats;
  CHECK(trtalloc_stats_get(trtalloc_default(), 0, &stats, sizeof stats) == TRTALLOC_STATUS_OK);
  return stats.allocated;
}

static void *per_thread_stream(OrtSyncStream *stream) NO_EXCEPTION {
  (void)stream;
  return (void *)2;
}

int main(void) {
  api = OrtGetApiBase()->GetApi(ORT_API_VERSION);
  CHECK(api != NULL);
  OrtEnv *env = NULL;
  ok(api->CreateEnv(ORT_LOGGING_LEVEL_ERROR, "test", &env));
  static trtalloc_onnxruntime memory;
  ok(trtalloc_onnxruntime_register(api, env, 0, &memory));

  /* What ONNX Runtime itself finds for the device's memory. */
  OrtMemoryInfo *info = NULL;
  ok(api->CreateMemoryInfo("Cuda", OrtDeviceAllocator, 0, OrtMemTypeDefault, &info));
  OrtAllocator *shared = NULL;
  ok(api->GetSharedAllocator(env, info, &shared));
  CHECK(shared != NULL);
  void *block = NULL;
  ok(api->AllocatorAlloc(shared, 10000, &block));
  CHECK(block != NULL && allocated() == 10240);
  OrtKeyValuePairs *stats = NULL;
  ok(api->AllocatorGetStats(shared, &stats));
  const char *const in_use = api->GetKeyValue(stats, "InUse");
  CHECK(in_use != NULL && strcmp(in_use, "10240") == 0);
  CHECK(strcmp(api->GetKeyValue(stats, "Limit"), "-1") == 0);
  CHECK(strcmp(api->GetKeyValue(stats, "NumAllocs"), "1") == 0);
  api->ReleaseKeyValuePairs(stats);
  ok(api->AllocatorFree(shared, block));
  CHECK(allocated() == 0);

  OrtAllocator *const own = &memory.allocator;
  CHECK(own->Alloc(own, 0) == NULL && own->Alloc(own, (size_t)1 << 45) == NULL);
  own->Free(own, NULL);
  block = own->Reserve(own, 4096);
  CHECK(block != NULL && allocated() == 4096);
  own->Free(own, block);
  /* On a stream, whose handle ONNX Runtime names. */
  OrtApi with_stream = *api;
  with_stream.SyncStream_GetHandle = per_thread_stream;
  memory.api = &with_stream;
  void *const before = trtalloc_allocate_async(trtalloc_default(), 1 << 20, 0, 0, (void *)2);
  CHECK(before != NULL && trtalloc_deallocate_async(trtalloc_default(), before, (void *)2));
  block = own->AllocOnStream(own, 1 << 20, (OrtSyncStream *)&memory);
  CHECK(block == before);
  own->Free(own, block);
  block = own->AllocOnStream(own, 1 << 20, NULL);
  CHECK(block != NULL);
  own->Free(own, block);
  memory.api = api;
  ok(own->Shrink(own));
  trtalloc_stats after;
  CHECK(trtalloc_stats_get(trtalloc_default(), 0, &after, sizeof after) == TRTALLOC_STATUS_OK);
  CHECK(after.allocated == 0 && after.trims == 1);

  ok(trtalloc_onnxruntime_unregister(&memory));
  api->ReleaseMemoryInfo(info);
  api->ReleaseEnv(env);
  return 0;
}
