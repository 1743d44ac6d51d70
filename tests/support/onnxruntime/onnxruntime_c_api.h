/* What onnxruntime.h and its test need of ONNX Runtime's header of that name, which no package on PyPI has: version 25 of the table, in
   which a function never changes its place. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#define ORT_API_VERSION 25
#define ORT_API_CALL
#ifdef __cplusplus
#define NO_EXCEPTION noexcept
#else
#define NO_EXCEPTION
#endif

typedef struct OrtStatus OrtStatus;
typedef struct OrtEnv OrtEnv;
typedef struct OrtMemoryInfo OrtMemoryInfo;
typedef struct OrtKeyValuePairs OrtKeyValuePairs;
typedef struct OrtSyncStream OrtSyncStream;
typedef enum OrtErrorCode { ORT_OK, ORT_FAIL } OrtErrorCode;
typedef enum OrtLoggingLevel { ORT_LOGGING_LEVEL_ERROR = 3 } OrtLoggingLevel;
typedef enum OrtAllocatorType { OrtDeviceAllocator = 0 } OrtAllocatorType;
typedef enum OrtMemType { OrtMemTypeDefault = 0 } OrtMemType;

typedef struct OrtAllocator {
  uint32_t version;
  void *(*Alloc)(struct OrtAllocator *, size_t);
  void (*Free)(struct OrtAllocator *, void *);
  const OrtMemoryInfo *(*Info)(const struct OrtAllocator *);
  void *(*Reserve)(struct OrtAllocator *, size_t);
  OrtStatus *(*GetStats)(const struct OrtAllocator *, OrtKeyValuePairs **)NO_EXCEPTION;
  void *(*AllocOnStream)(struct OrtAllocator *, size_t, OrtSyncStream *);
  OrtStatus *(*Shrink)(struct OrtAllocator *)NO_EXCEPTION;
} OrtAllocator;

typedef struct OrtApi {
  OrtStatus *(*CreateStatus)(OrtErrorCode, const char *)NO_EXCEPTION; /* 0 */
  void *from_1[1];
  const char *(*GetErrorMessage)(const OrtStatus *)NO_EXCEPTION; /* 2 */
  OrtStatus *(*CreateEnv)(OrtLoggingLevel, const char *, OrtEnv **)NO_EXCEPTION;
  void *from_4[68 - 4];
  OrtStatus *(*CreateMemoryInfo)(const char *, OrtAllocatorType, int, OrtMemType, OrtMemoryInfo **)NO_EXCEPTION; /* 68 */
  void *from_69[75 - 69];
  OrtStatus *(*AllocatorAlloc)(OrtAllocator *, size_t, void **)NO_EXCEPTION; /* 75 */
  OrtStatus *(*AllocatorFree)(OrtAllocator *, void *)NO_EXCEPTION;
  void *from_77[92 - 77];
  void (*ReleaseEnv)(OrtEnv *)NO_EXCEPTION; /* 92 */
  void (*ReleaseStatus)(OrtStatus *)NO_EXCEPTION;
  void (*ReleaseMemoryInfo)(OrtMemoryInfo *)NO_EXCEPTION;
  void *from_95[176 - 95];
  OrtStatus *(*RegisterAllocator)(OrtEnv *, OrtAllocator *)NO_EXCEPTION; /* 176 */
  OrtStatus *(*UnregisterAllocator)(OrtEnv *, const OrtMemoryInfo *)NO_EXCEPTION;
  void *from_178[295 - 178];
  void (*CreateKeyValuePairs)(OrtKeyValuePairs **); /* 295 */
  void (*AddKeyValuePair)(OrtKeyValuePairs *, const char *, const char *);
  const char *(*GetKeyValue)(const OrtKeyValuePairs *, const char *);
  void *from_298[300 - 298];
  void (*ReleaseKeyValuePairs)(OrtKeyValuePairs *)NO_EXCEPTION; /* 300 */
  void *from_301[319 - 301];
  OrtStatus *(*AllocatorGetStats)(const OrtAllocator *, OrtKeyValuePairs **)NO_EXCEPTION; /* 319 */
  void *from_320[376 - 320];
  OrtStatus *(*GetSharedAllocator)(OrtEnv *, const OrtMemoryInfo *, OrtAllocator **)NO_EXCEPTION; /* 376 */
  void *from_377[384 - 377];
  void *(*SyncStream_GetHandle)(OrtSyncStream *)NO_EXCEPTION; /* 384 */
} OrtApi;

typedef struct OrtApiBase {
  const OrtApi *(*GetApi)(uint32_t)NO_EXCEPTION;
  const char *(*GetVersionString)(void)NO_EXCEPTION;
} OrtApiBase;

#ifdef __cplusplus
extern "C"
#endif
const OrtApiBase *OrtGetApiBase(void) NO_EXCEPTION;
