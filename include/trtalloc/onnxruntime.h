/* trtalloc as an allocator of ONNX Runtime, for C99 and C++ and the application's own onnxruntime_c_api.h, whose folder the compiler
   must know. It uses trtalloc_default(). Sessions with the option session.use_env_allocators take the memory of a device from it: what
   the CUDA provider needs, and the providers that take that provider's allocator.

       static trtalloc_onnxruntime memory;
       OrtStatus *status = trtalloc_onnxruntime_register(api, env, 0, &memory);
       ... api->AddSessionConfigEntry(options, "session.use_env_allocators", "1") ...

   ONNX Runtime names no stream when it frees memory, so this is trtalloc_deallocate: work that is queued on any stream may still use
   it. */
#ifndef TRTALLOC_ONNXRUNTIME_H
#define TRTALLOC_ONNXRUNTIME_H

#include <trtalloc/trtalloc.h>

/* The application may have it in another folder, and include it before. */
#ifndef ORT_API_VERSION
#include <onnxruntime_c_api.h>
#endif

#include <stdio.h>
#include <string.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The allocator of one device. It must exist until trtalloc_onnxruntime_unregister, or as long as the environment. */
typedef struct trtalloc_onnxruntime {
  /* ONNX Runtime has the address of this, which is that of the whole. */
  OrtAllocator allocator;
  const OrtApi *api;
  OrtEnv *env;
  OrtMemoryInfo *info;
  int32_t device;
} trtalloc_onnxruntime;

/* NULL where memory has run out, and for 0 bytes. */
static inline void *ORT_API_CALL trtalloc_onnxruntime_alloc(OrtAllocator *self, size_t size) {
  /* Of the functions for frameworks, this one names a device and no stream. */
  return size == 0 ? NULL : trtalloc_cupy_malloc(NULL, size, ((trtalloc_onnxruntime *)self)->device);
}

static inline void ORT_API_CALL trtalloc_onnxruntime_free(OrtAllocator *self, void *memory) {
  (void)self;
  trtalloc_deallocate(trtalloc_default(), memory);
}

static inline const OrtMemoryInfo *ORT_API_CALL trtalloc_onnxruntime_info(const OrtAllocator *self) {
  return ((const trtalloc_onnxruntime *)self)->info;
}

#if ORT_API_VERSION >= 23
/* For work that is queued on the stream from now on. */
static inline void *ORT_API_CALL trtalloc_onnxruntime_alloc_on_stream(OrtAllocator *self, size_t size, OrtSyncStream *stream) {
  trtalloc_onnxruntime *const its = (trtalloc_onnxruntime *)self;
  if (size == 0 || stream == NULL) {
    return trtalloc_onnxruntime_alloc(self, size);
  }
  return trtalloc_allocate_on(trtalloc_default(), its->device, size, 0, 0, its->api->SyncStream_GetHandle(stream));
}

/* The device's statistics, by ONNX Runtime's names. They count all users of the pool. */
static inline OrtStatus *ORT_API_CALL trtalloc_onnxruntime_stats(const OrtAllocator *self, OrtKeyValuePairs **out) NO_EXCEPTION {
  const trtalloc_onnxruntime *const its = (const trtalloc_onnxruntime *)self;
  trtalloc_stats stats;
  memset(&stats, 0, sizeof stats);
  if (trtalloc_stats_get(trtalloc_default(), its->device, &stats, sizeof stats) != TRTALLOC_STATUS_OK) {
    return its->api->CreateStatus(ORT_FAIL, trtalloc_last_error());
  }
  const char *const names[] = {"Limit", "InUse", "TotalAllocated", "MaxInUse", "NumAllocs"};
  /* -1 is no limit. */
  const long long figures[] = {
      stats.limit == 0 ? -1 : (long long)stats.limit, (long long)stats.allocated,   (long long)stats.reserved,
      (long long)stats.allocated_peak,                (long long)stats.allocations,
  };
  its->api->CreateKeyValuePairs(out);
  for (size_t i = 0; i < sizeof names / sizeof *names; ++i) {
    char text[24];
    snprintf(text, sizeof text, "%lld", figures[i]);
    its->api->AddKeyValuePair(*out, names[i], text);
  }
  return NULL;
}
#endif

#if ORT_API_VERSION >= 25
static inline OrtStatus *ORT_API_CALL trtalloc_onnxruntime_shrink(OrtAllocator *self) NO_EXCEPTION {
  const trtalloc_onnxruntime *const its = (const trtalloc_onnxruntime *)self;
  uint64_t released = 0;
  return trtalloc_trim(trtalloc_default(), its->device, 0, &released) == TRTALLOC_STATUS_OK
             ? NULL
             : its->api->CreateStatus(ORT_FAIL, trtalloc_last_error());
}
#endif

/* Makes the pool the allocator that sessions of `env` share for a device. `api` is what OrtGetApiBase()->GetApi(ORT_API_VERSION)
   returned. NULL if that succeeded; else a status, which the caller releases. */
static inline OrtStatus *trtalloc_onnxruntime_register(const OrtApi *api, OrtEnv *env, int32_t device, trtalloc_onnxruntime *out) {
  memset(out, 0, sizeof *out);
  out->allocator.version = ORT_API_VERSION;
  out->allocator.Alloc = trtalloc_onnxruntime_alloc;
  out->allocator.Free = trtalloc_onnxruntime_free;
  out->allocator.Info = trtalloc_onnxruntime_info;
#if ORT_API_VERSION >= 18
  out->allocator.Reserve = trtalloc_onnxruntime_alloc;
#endif
#if ORT_API_VERSION >= 23
  out->allocator.GetStats = trtalloc_onnxruntime_stats;
  out->allocator.AllocOnStream = trtalloc_onnxruntime_alloc_on_stream;
#endif
#if ORT_API_VERSION >= 25
  out->allocator.Shrink = trtalloc_onnxruntime_shrink;
#endif
  out->api = api;
  out->env = env;
  out->device = device;
  OrtStatus *status = api->CreateMemoryInfo("Cuda", OrtDeviceAllocator, device, OrtMemTypeDefault, &out->info);
  if (status == NULL) {
    status = api->RegisterAllocator(env, &out->allocator);
    if (status != NULL) {
      api->ReleaseMemoryInfo(out->info);
      out->info = NULL;
    }
  }
  return status;
}

/* Ends that. Sessions that use the allocator must have been released. */
static inline OrtStatus *trtalloc_onnxruntime_unregister(trtalloc_onnxruntime *allocator) {
  OrtStatus *const status = allocator->api->UnregisterAllocator(allocator->env, allocator->info);
  if (status == NULL) {
    allocator->api->ReleaseMemoryInfo(allocator->info);
    allocator->info = NULL;
  }
  return status;
}

#ifdef __cplusplus
}
#endif

#endif /* TRTALLOC_ONNXRUNTIME_H */
