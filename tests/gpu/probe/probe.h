/* What the questions share: the driver's functions by their exported names, rows, work that waits, clocks.
 * Own declarations throughout: neither cuda.h nor libcuda is needed to compile. C99, Linux. */
#ifndef TRTALLOC_PROBE_H
#define TRTALLOC_PROBE_H

#include <stddef.h>
#include <stdint.h>

typedef unsigned CUresult;
typedef int CUdevice;
typedef unsigned long long CUdeviceptr;
typedef struct CUctx_st *CUcontext;
typedef struct CUstream_st *CUstream;
typedef struct CUevent_st *CUevent;
typedef struct CUgraph_st *CUgraph;
typedef struct CUgraphExec_st *CUgraphExec;
typedef struct CUuserObject_st *CUuserObject;
typedef struct CUgreenCtx_st *CUgreenCtx;
typedef struct CUdevResourceDesc_st *CUresourceDesc;
typedef unsigned long long CUhandle;
typedef void (*CUhostFn)(void *);
typedef struct CUmod_st *CUmodule;
typedef struct CUfunc_st *CUfunction;

typedef struct {
    int type, id;
} CUlocation;

typedef struct {
    int type;              /* 1: pinned */
    int handle_types;      /* for export */
    CUlocation location;   /* type 1: device */
    void *win32;
    unsigned char compression, rdma;
    unsigned short usage;
    unsigned char reserved[4];
} CUallocationProp;

typedef struct {
    CUlocation location;
    int flags; /* 3: read and write */
} CUaccess;

/* CUlaunchAttribute: its value is 64 bytes, at offset 8. */
typedef struct {
    int id; /* 6: programmatic stream serialization */
    char pad[8 - sizeof(int)];
    union {
        char pad[64];
        int on;
    } value;
} CUlaunchAttribute;

typedef struct {
    unsigned grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes;
    CUstream stream;
    CUlaunchAttribute *attributes;
    unsigned attribute_count;
} CUlaunchConfig;

enum { NOT_READY = 600, ILLEGAL_ADDRESS = 700, CAPTURE_IMPLICIT = 906 };
enum { MODE_NONE = -1, MODE_GLOBAL = 0, MODE_THREAD_LOCAL = 1, MODE_RELAXED = 2 };
enum { NON_BLOCKING = 1, DISABLE_TIMING = 2 };

/* X(result-returning function, its parameters) */
#define FUNCTIONS(X) \
    X(cuInit, (unsigned)) \
    X(cuDriverGetVersion, (int *)) \
    X(cuDeviceGetCount, (int *)) \
    X(cuDeviceGetName, (char *, int, CUdevice)) \
    X(cuDeviceGetAttribute, (int *, int, CUdevice)) \
    X(cuDeviceTotalMem_v2, (size_t *, CUdevice)) \
    X(cuGetErrorName, (CUresult, const char **)) \
    X(cuModuleLoadData, (CUmodule *, const void *)) \
    X(cuModuleGetFunction, (CUfunction *, CUmodule, const char *)) \
    X(cuLaunchKernel, \
      (CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream, void **, void **)) \
    X(cuLaunchKernelEx, (const CUlaunchConfig *, CUfunction, void **, void **)) \
    X(cuDevicePrimaryCtxRetain, (CUcontext *, CUdevice)) \
    X(cuDevicePrimaryCtxRelease_v2, (CUdevice)) \
    X(cuDevicePrimaryCtxReset_v2, (CUdevice)) \
    X(cuCtxSetCurrent, (CUcontext)) \
    X(cuCtxGetCurrent, (CUcontext *)) \
    X(cuCtxGetDevice, (CUdevice *)) \
    X(cuCtxGetId, (CUcontext, unsigned long long *)) \
    X(cuCtxSynchronize, (void)) \
    X(cuCtxRecordEvent, (CUcontext, CUevent)) \
    X(cuCtxCreate_v2, (CUcontext *, unsigned, CUdevice)) \
    X(cuCtxDestroy_v2, (CUcontext)) \
    X(cuDeviceGetDevResource, (CUdevice, void *, int)) \
    X(cuDevResourceGenerateDesc, (CUresourceDesc *, void *, unsigned)) \
    X(cuGreenCtxCreate, (CUgreenCtx *, CUresourceDesc, CUdevice, unsigned)) \
    X(cuGreenCtxDestroy, (CUgreenCtx)) \
    X(cuCtxFromGreenCtx, (CUcontext *, CUgreenCtx)) \
    X(cuStreamCreate, (CUstream *, unsigned)) \
    X(cuStreamDestroy_v2, (CUstream)) \
    X(cuStreamSynchronize, (CUstream)) \
    X(cuStreamGetId, (CUstream, unsigned long long *)) \
    X(cuStreamGetCtx, (CUstream, CUcontext *)) \
    X(cuStreamGetCtx_v2, (CUstream, CUcontext *, CUgreenCtx *)) \
    X(cuStreamIsCapturing, (CUstream, int *)) \
    X(cuStreamBeginCapture_v2, (CUstream, int)) \
    X(cuStreamBeginCaptureToGraph, (CUstream, CUgraph, const void *, const void *, size_t, int)) \
    X(cuStreamEndCapture, (CUstream, CUgraph *)) \
    X(cuStreamGetCaptureInfo_v2, (CUstream, int *, unsigned long long *, CUgraph *, const void **, size_t *)) \
    X(cuStreamGetCaptureInfo_v3, \
      (CUstream, int *, unsigned long long *, CUgraph *, const void **, const void **, size_t *)) \
    X(cuThreadExchangeStreamCaptureMode, (int *)) \
    X(cuStreamWaitEvent, (CUstream, CUevent, unsigned)) \
    X(cuStreamWaitValue32_v2, (CUstream, CUdeviceptr, unsigned, unsigned)) \
    X(cuLaunchHostFunc, (CUstream, CUhostFn, void *)) \
    X(cuEventCreate, (CUevent *, unsigned)) \
    X(cuEventRecord, (CUevent, CUstream)) \
    X(cuEventQuery, (CUevent)) \
    X(cuEventSynchronize, (CUevent)) \
    X(cuMemGetAllocationGranularity, (size_t *, const CUallocationProp *, int)) \
    X(cuMemAddressReserve, (CUdeviceptr *, size_t, size_t, CUdeviceptr, unsigned long long)) \
    X(cuMemAddressFree, (CUdeviceptr, size_t)) \
    X(cuMemCreate, (CUhandle *, size_t, const CUallocationProp *, unsigned long long)) \
    X(cuMemRelease, (CUhandle)) \
    X(cuMemMap, (CUdeviceptr, size_t, size_t, CUhandle, unsigned long long)) \
    X(cuMemUnmap, (CUdeviceptr, size_t)) \
    X(cuMemSetAccess, (CUdeviceptr, size_t, const CUaccess *, size_t)) \
    X(cuMemAlloc_v2, (CUdeviceptr *, size_t)) \
    X(cuMemFree_v2, (CUdeviceptr)) \
    X(cuMemAllocAsync, (CUdeviceptr *, size_t, CUstream)) \
    X(cuMemFreeAsync, (CUdeviceptr, CUstream)) \
    X(cuMemGetInfo_v2, (size_t *, size_t *)) \
    X(cuMemHostAlloc, (void **, size_t, unsigned)) \
    X(cuMemHostGetDevicePointer_v2, (CUdeviceptr *, void *, unsigned)) \
    X(cuMemsetD8Async, (CUdeviceptr, unsigned char, size_t, CUstream)) \
    X(cuMemcpyDtoDAsync_v2, (CUdeviceptr, CUdeviceptr, size_t, CUstream)) \
    X(cuMemcpyDtoHAsync_v2, (void *, CUdeviceptr, size_t, CUstream)) \
    X(cuMemcpyDtoH_v2, (void *, CUdeviceptr, size_t)) \
    X(cuGraphInstantiateWithFlags, (CUgraphExec *, CUgraph, unsigned long long)) \
    X(cuGraphCreate, (CUgraph *, unsigned)) \
    X(cuGraphConditionalHandleCreate, (unsigned long long *, CUgraph, CUcontext, unsigned, unsigned)) \
    X(cuGraphAddNode, (void **, CUgraph, const void *, size_t, void *)) \
    X(cuGraphLaunch, (CUgraphExec, CUstream)) \
    X(cuGraphDestroy, (CUgraph)) \
    X(cuGraphExecDestroy, (CUgraphExec)) \
    X(cuUserObjectCreate, (CUuserObject *, void *, CUhostFn, unsigned, unsigned)) \
    X(cuGraphRetainUserObject, (CUgraph, CUuserObject, unsigned, unsigned))

#define DECLARE(name, parameters) extern CUresult(*p_##name) parameters;
FUNCTIONS(DECLARE)
#undef DECLARE

/* A question's answer. `question` NULL: the one being asked. printf-like evidence. */
void row(const char *question, const char *answer, const char *evidence, ...)
    __attribute__((format(printf, 3, 4)));

/* Ends the child with the row "absent" or "not asked". */
void absent(const char *function) __attribute__((noreturn));
void not_asked(const char *call, CUresult code) __attribute__((noreturn));

/* Calls a function that has to be there and has to succeed before the question can be asked. */
#define MUST(name, ...) \
    do { \
        NEED(name); \
        CUresult must_code = p_##name(__VA_ARGS__); \
        if (must_code) not_asked(#name, must_code); \
    } while (0)
#define NEED(name) \
    do { \
        if (!p_##name) absent(#name); \
    } while (0)

/* A question: asked in a child process of its own, which may crash or hang. */
struct question {
    const char *text;
    void (*ask)(long argument);
    long argument;
};
extern const struct question cost_questions[], capture_questions[], memory_questions[], lifetime_questions[];
extern const struct question alias_questions[], device_questions[], pool_questions[], green_questions[];

/* A code by CUDA's name for it. */
const char *name_of(CUresult code);
/* Ends the child with the row "not asked" for a reason that is no failed call. */
void cannot_ask(const char *why, ...) __attribute__((noreturn, format(printf, 1, 2)));

/* What every child begins with: device 0's primary context, current. */
extern CUcontext primary;
void setup(void);
void synchronize(void); /* the context */

CUstream new_stream(void);      /* non-blocking */
CUevent new_event(void);
size_t granularity(void);
CUhandle new_handle(size_t bytes);
CUdeviceptr new_range(size_t bytes);
void give_access(CUdeviceptr at, size_t bytes);
CUdeviceptr new_mapping(size_t bytes); /* range, handle (released again) and access */

/* Work that stays pending until its gate is opened. */
struct gate {
    volatile int open, entered;
};
void close_gate(struct gate *gate, CUstream stream);
void open_gate(struct gate *gate);
void open_gate_after(struct gate *gate, int milliseconds);

/* Ends the child with the row "not asked" where an event does not wait for a closed gate: a simulated driver may run host
 * functions beside its streams. */
void gates_must_hold(void);

/* ---- kernels (kernels.c), from PTX that the driver compiles ---- */

extern const char *const ptx_modules[]; /* NULL at the end */
/* Whether the driver runs them: a simulated one may accept launches that compute nothing. `why` says what happened. */
int kernels_run(const char **why);
/* Ends the child with the row "not asked" where it does not. */
void kernels_must_run(void);
/* The function of that name, of the module for every device, or of the one for compute capability 9.0 and later. */
CUfunction kernel(const char *name);
CUfunction dependent_kernel(const char *name);
void launch(CUfunction function, unsigned blocks, unsigned threads, CUstream stream, void **arguments);

/* Memory of the host that kernels read and write, zeroed. */
struct words {
    volatile unsigned *host;
    CUdeviceptr device;
};
struct words new_words(size_t count);
/* Launches a kernel that runs until word 1 is not 0, at most so long, and sets word 0 as it begins. */
void hold_stream(struct words words, CUstream stream, int most_milliseconds);

double now(void);               /* seconds */
void pause_ms(int milliseconds);
/* True once *flag is not 0, false after so many milliseconds. */
int wait_for(volatile int *flag, int milliseconds);
double median(double *values, int count);
const char *mode_name(long mode);

#endif
