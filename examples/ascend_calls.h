/* The functions of AscendCL that the examples call, declared as in its public reference, so that they compile without CANN.
 * With CANN, include acl/acl.h, acl/ops/acl_dvpp.h and the media headers instead. */
#ifndef ASCEND_CALLS_H
#define ASCEND_CALLS_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef int aclError;
typedef void *aclrtStream;

typedef enum { ACL_MEMCPY_HOST_TO_DEVICE = 1, ACL_MEMCPY_DEVICE_TO_HOST = 2, ACL_MEMCPY_DEVICE_TO_DEVICE = 3 } aclrtMemcpyKind;

/* libascendcl.so */
aclError aclInit(const char *configPath);
aclError aclFinalize(void);
aclError aclrtSetDevice(int32_t deviceId);
aclError aclrtResetDevice(int32_t deviceId);
aclError aclrtCreateStream(aclrtStream *stream);
aclError aclrtDestroyStream(aclrtStream stream);
aclError aclrtSynchronizeStream(aclrtStream stream);
aclError aclrtMallocHost(void **hostPtr, size_t size);
aclError aclrtFreeHost(void *hostPtr);
aclError aclrtMemset(void *devPtr, size_t maxCount, int32_t value, size_t count);
aclError aclrtMemsetAsync(void *devPtr, size_t maxCount, int32_t value, size_t count, aclrtStream stream);
aclError aclrtMemcpyAsync(void *dst, size_t destMax, const void *src, size_t count, aclrtMemcpyKind kind,
                          aclrtStream stream);

/* libacl_dvpp.so: media processing, version 1 */
aclError acldvppMalloc(void **devPtr, size_t size);
aclError acldvppFree(void *devPtr);

/* libacl_dvpp_mpi.so: media processing, version 2 */
int32_t hi_mpi_dvpp_malloc(uint32_t dev_id, void **dev_ptr, uint64_t size);
int32_t hi_mpi_dvpp_free(void *dev_ptr);

#ifdef __cplusplus
}
#endif

/* Ends the program where a call of AscendCL fails. */
#define ACL(call)                                                                                      \
  do {                                                                                                 \
    int const code_ = (call);                                                                          \
    if (code_ != 0) {                                                                                  \
      fprintf(stderr, "%s: %d\n", #call, code_);                                                       \
      exit(1);                                                                                         \
    }                                                                                                  \
  } while (0)

/* Ends the program where a call of trtalloc fails. */
#define MEMORY(condition)                                                                              \
  do {                                                                                                 \
    if (!(condition)) {                                                                                \
      fprintf(stderr, "%s: %s\n", #condition, trtalloc_last_error());                                  \
      exit(1);                                                                                         \
    }                                                                                                  \
  } while (0)

#endif
