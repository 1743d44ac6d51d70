/* A stand-in for libcudart.so.12, for tests on a machine without a GPU: the few functions through which a framework picks a
   device, makes streams and copies bytes, each by the documented driver function. It runs no kernel. It exists so that real
   PyTorch can be run over a simulated libcuda.so.1: NVIDIA's own runtime needs more of a driver than is documented. */
#include <dlfcn.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef int error;
enum { SUCCESS = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, NOT_READY = 600, UNKNOWN = 999 };

static _Thread_local error last;

static void *driver(const char *name) {
    static void *library;
    if (!library) library = dlopen("libcuda.so.1", RTLD_NOW);
    void *function = library ? dlsym(library, name) : NULL;
    if (!function) {
        fprintf(stderr, "stand-in runtime: no %s\n", name);
        abort();
    }
    return function;
}

/* Calls a driver function of this name with these arguments; CURRENT makes a context current first. */
#define CALL(name, types, ...) set_last(((int(*) types)driver(name))(__VA_ARGS__))
#define CURRENT(name, types, ...) (enter() ? last : CALL(name, types, __VA_ARGS__))

static error set_last(int code) {
    /* Driver and runtime use the same codes for the errors that can occur here. */
    if (code != SUCCESS && code != NOT_READY) last = code;
    return code;
}

static _Thread_local int device;

static error enter(void) {
    static int initialised;
    if (!initialised) {
        if (CALL("cuInit", (unsigned), 0)) return last;
        initialised = 1;
    }
    void *context = NULL;
    if (CALL("cuCtxGetCurrent", (void **), &context)) return last;
    if (context) return SUCCESS;
    if (CALL("cuDevicePrimaryCtxRetain", (void **, int), &context, device)) return last;
    return CALL("cuCtxSetCurrent", (void *), context);
}

error cudaGetDeviceCount(int *count) { return CURRENT("cuDeviceGetCount", (int *), count); }
error cudaGetDevice(int *out) { return *out = device, SUCCESS; }
error cudaSetDevice(int to) {
    if (to == device) return enter();
    void *context = NULL;
    device = to;
    if (CALL("cuDevicePrimaryCtxRetain", (void **, int), &context, to)) return last;
    return CALL("cuCtxSetCurrent", (void *), context);
}

/* The beginning of cudaDeviceProp; its other fields stay as the caller has them. */
struct properties {
    char name[256], uuid[16], luid[8];
    unsigned node_mask;
    size_t total, shared;
    int registers, warp;
    size_t pitch;
    int threads, threads_dim[3], grid[3], clock;
    size_t constant;
    int major, minor;
    size_t texture, texture_pitch;
    int overlap, processors;
};
error cudaGetDeviceProperties_v2(struct properties *to, int which) {
    memset(to, 0, sizeof *to);
    strcpy(to->name, "simulated");
    to->warp = 32, to->threads = 1024, to->major = 8, to->processors = 1;
    return CURRENT("cuDeviceTotalMem_v2", (size_t *, int), &to->total, which);
}
/* The same of CUDA 13, which has neither the clock nor the overlap. */
struct properties_13 {
    char name[256], uuid[16], luid[8];
    unsigned node_mask;
    size_t total, shared;
    int registers, warp;
    size_t pitch;
    int threads, threads_dim[3], grid[3];
    size_t constant;
    int major, minor;
    size_t texture, texture_pitch;
    int processors;
};
error cudaGetDeviceProperties(struct properties_13 *to, int which) {
    memset(to, 0, sizeof *to);
    strcpy(to->name, "simulated");
    to->warp = 32, to->threads = 1024, to->major = 8, to->processors = 1;
    return CURRENT("cuDeviceTotalMem_v2", (size_t *, int), &to->total, which);
}
error cudaDeviceGetAttribute(int *value, int attribute, int which) {
    (void)attribute, (void)which;
    return *value = 0, SUCCESS;
}
error cudaDeviceGetStreamPriorityRange(int *least, int *greatest) { return *least = *greatest = 0, SUCCESS; }
error cudaDriverGetVersion(int *version) { return *version = 12090, SUCCESS; }
error cudaRuntimeGetVersion(int *version) { return *version = 12040, SUCCESS; }
error cudaDeviceSynchronize(void) { return CURRENT("cuCtxSynchronize", (void), ); }
error cudaMemGetInfo(size_t *free, size_t *total) { return CURRENT("cuMemGetInfo_v2", (size_t *, size_t *), free, total); }

/* Returns a driver function by its name, for libraries that call the driver themselves. */
error cudaGetDriverEntryPointByVersion(const char *name, void **function, unsigned version, unsigned long long flags, int *found) {
    (void)version, (void)flags;
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    *function = library ? dlsym(library, name) : NULL;
    if (found) *found = *function ? 0 : 1;
    return SUCCESS;
}

const char *cudaGetErrorString(error code) { return code == SUCCESS ? "no error" : "an error of the stand-in runtime"; }
const char *cudaGetErrorName(error code) { return cudaGetErrorString(code); }
error cudaPeekAtLastError(void) { return last; }
error cudaGetLastError(void) {
    error was = last;
    last = SUCCESS;
    return was;
}

error cudaStreamCreateWithPriority(void **stream, unsigned flags, int priority) {
    (void)priority;
    return CURRENT("cuStreamCreate", (void **, unsigned), stream, flags);
}
error cudaStreamCreateWithFlags(void **stream, unsigned flags) {
    return CURRENT("cuStreamCreate", (void **, unsigned), stream, flags);
}
error cudaStreamDestroy(void *stream) { return CALL("cuStreamDestroy_v2", (void *), stream); }
error cudaStreamQuery(void *stream) { return CURRENT("cuStreamQuery", (void *), stream); }
error cudaStreamSynchronize(void *stream) { return CURRENT("cuStreamSynchronize", (void *), stream); }
error cudaStreamIsCapturing(void *stream, int *status) { return CURRENT("cuStreamIsCapturing", (void *, int *), stream, status); }
error cudaStreamWaitEvent(void *stream, void *event, unsigned flags) {
    return CURRENT("cuStreamWaitEvent", (void *, void *, unsigned), stream, event, flags);
}
error cudaStreamGetCaptureInfo_v2(void *stream, int *status, void *id, void *graph, void *dependencies, void *count) {
    (void)id, (void)graph, (void)dependencies, (void)count;
    return cudaStreamIsCapturing(stream, status);
}
/* The same of CUDA 13. */
error cudaStreamGetCaptureInfo(void *stream, int *status, void *id, void *graph, void *dependencies, void *edges, void *count) {
    (void)edges;
    return cudaStreamGetCaptureInfo_v2(stream, status, id, graph, dependencies, count);
}
error cudaThreadExchangeStreamCaptureMode(int *mode) {
    return CURRENT("cuThreadExchangeStreamCaptureMode", (int *), mode);
}
error cudaEventCreateWithFlags(void **event, unsigned flags) { return CURRENT("cuEventCreate", (void **, unsigned), event, flags); }
error cudaEventDestroy(void *event) { return CALL("cuEventDestroy_v2", (void *), event); }
error cudaEventRecord(void *event, void *stream) { return CURRENT("cuEventRecord", (void *, void *), event, stream); }
error cudaEventQuery(void *event) { return CALL("cuEventQuery", (void *), event); }
error cudaEventSynchronize(void *event) { return CALL("cuEventSynchronize", (void *), event); }

/* PyTorch's own allocator, which a MemPool uses. */
error cudaMalloc(void **memory, size_t bytes) { return CURRENT("cuMemAlloc_v2", (void **, size_t), memory, bytes); }
error cudaFree(void *memory) { return memory ? CURRENT("cuMemFree_v2", (void *), memory) : SUCCESS; }

/* The fields of cudaPointerAttributes. Memory that is not the device's has type 0. */
struct pointer_attributes {
    int type, device;
    void *on_device, *on_host;
};
error cudaPointerGetAttributes(struct pointer_attributes *to, const void *memory) {
    memset(to, 0, sizeof *to);
    int (*get)(void *, int, const void *) = (int (*)(void *, int, const void *))driver("cuPointerGetAttribute");
    if (enter()) return last;
    /* CU_POINTER_ATTRIBUTE_MEMORY_TYPE, _DEVICE_POINTER and _DEVICE_ORDINAL. */
    if (get(&to->type, 2, memory)) return to->type = 0, SUCCESS;
    return set_last(get(&to->on_device, 3, memory) || get(&to->device, 9, memory) ? INVALID_VALUE : SUCCESS);
}

/* Simulated memory is the host's. */
error cudaMemcpyAsync(void *to, const void *from, size_t bytes, int kind, void *stream) {
    (void)kind;
    if (cudaStreamSynchronize(stream)) return last;
    memcpy(to, from, bytes);
    return SUCCESS;
}
error cudaMemcpy(void *to, const void *from, size_t bytes, int kind) { return cudaMemcpyAsync(to, from, bytes, kind, NULL); }
error cudaMemsetAsync(void *to, int byte, size_t bytes, void *stream) {
    return CURRENT("cuMemsetD8Async", (void *, unsigned char, size_t, void *), to, (unsigned char)byte, bytes, stream);
}

/* Functions that nvcc's code calls when a library is loaded. */
void **__cudaRegisterFatBinary(void *binary) {
    static void *handle;
    (void)binary;
    return &handle;
}
void __cudaRegisterFatBinaryEnd(void **handle) { (void)handle; }
void __cudaUnregisterFatBinary(void **handle) { (void)handle; }
void __cudaRegisterFunction(void) {}
void __cudaRegisterVar(void) {}
