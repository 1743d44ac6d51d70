/* trtalloc for other frameworks: functions in the shape of their hooks, all on trtalloc_default(). Each is given to a framework
   by its address or its name. Generated from src/ffi/c/hooks.rs by tests/header.rs. */

#ifndef TRTALLOC_HOOKS_H
#define TRTALLOC_HOOKS_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---------------------------------------
   Hooks of PyTorch, ONNX Runtime and CuPy
   --------------------------------------- */

// For torch.cuda.memory.CUDAPluggableAllocator, and for torch.cuda.MemPool: trtalloc_allocate_on with
// trtalloc_default(). NULL where the request cannot be met, which PyTorch looks at in a MemPool only.
void *trtalloc_torch_malloc(size_t size, int device, void *stream);

// As trtalloc_torch_malloc, for PyTorch's allocator as a whole: PyTorch makes a tensor of whatever it gets, so where a
// request of more than 0 bytes cannot be met this throws, by the C++ runtime that PyTorch has loaded. Where memory is out, that is
// PyTorch's own c10::OutOfMemoryError ("CUDA out of memory. ..."), torch.OutOfMemoryError in Python; for any other reason, and
// in a process without PyTorch, std::runtime_error. It is the one function here that throws; NULL where there is no such runtime.
void *trtalloc_torch_malloc_or_throw(size_t size,
                                     int device,
                                     void *stream);

// For torch.cuda.memory.CUDAPluggableAllocator: trtalloc_deallocate_async with trtalloc_default(). PyTorch passes the
// stream that the memory was allocated on. Size and device are ignored.
void trtalloc_torch_free(void *memory, size_t size, int device, void *stream);

// For its set_record_stream_fn: trtalloc_record_stream with trtalloc_default(). NULL is no block and is ignored.
void trtalloc_torch_record_stream(void *memory, void *stream);

// For its set_init_fn: opens the driver, so that a failure is logged where PyTorch starts.
void trtalloc_torch_init(int device_count);

// For its set_reset_fn, which torch.cuda.empty_cache() calls: trtalloc_trim to 0 with trtalloc_default(), on each device.
void trtalloc_torch_reset(void);

// For its set_memory_fraction_fn: trtalloc_set_limit with trtalloc_default() to that part of the device's memory, from 0
// to 1. The limit is the pool's, and so holds for all who draw on it.
void trtalloc_torch_memory_fraction(double fraction,
                                    int device);

// For ONNX Runtime's gpu_external_alloc: trtalloc_allocate with trtalloc_default(), on the current device.
void *trtalloc_ort_alloc(size_t size);

// For ONNX Runtime's gpu_external_free: trtalloc_deallocate with trtalloc_default().
void trtalloc_ort_free(void *memory);

// For ONNX Runtime's gpu_external_empty_cache: trtalloc_trim to 0 with trtalloc_default(), on the current device.
void trtalloc_ort_empty_cache(void);

// For cupy.cuda.memory.CFunctionAllocator: trtalloc_allocate with trtalloc_default(), on `device`. `param` is ignored.
void *trtalloc_cupy_malloc(void *param, size_t size, int device);

// For cupy.cuda.memory.CFunctionAllocator: trtalloc_deallocate with trtalloc_default(). `param` and `device` are ignored.
void trtalloc_cupy_free(void *param,
                        void *memory,
                        int device);

#ifdef __cplusplus
}  /* extern "C" */
#endif

#endif  /* TRTALLOC_HOOKS_H */
