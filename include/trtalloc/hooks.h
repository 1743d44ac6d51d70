/* trtalloc for other frameworks: functions with the types that the frameworks' hooks require. All use trtalloc_default().
   Pass a function to its framework by address or by name. Generated from src/ffi/c/hooks.rs by tests/header.rs. */

#ifndef TRTALLOC_HOOKS_H
#define TRTALLOC_HOOKS_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---------------------------------------
   Hooks of PyTorch, ONNX Runtime and CuPy
   --------------------------------------- */

// For torch.cuda.memory.CUDAPluggableAllocator and torch.cuda.MemPool: trtalloc_allocate_on with trtalloc_default().
// Returns NULL if the request cannot be satisfied; PyTorch checks for NULL only in a MemPool.
void *trtalloc_torch_malloc(size_t size, int device, void *stream);

// As trtalloc_torch_malloc, for all of PyTorch's memory. There PyTorch does not check for NULL, so this function
// throws if a request of more than 0 bytes cannot be satisfied. It throws through the C++ runtime that PyTorch has
// loaded: where memory has run out, PyTorch's own c10::OutOfMemoryError ("CUDA out of memory. ..."), which is
// torch.OutOfMemoryError in Python; for any other reason, and in a process without PyTorch, std::runtime_error. It is
// the only function here that throws. Returns NULL if the process has no such runtime.
void *trtalloc_torch_malloc_or_throw(size_t size, int device, void *stream);

// For torch.cuda.memory.CUDAPluggableAllocator: trtalloc_deallocate_async with trtalloc_default(). PyTorch passes the
// stream on which the memory was allocated. Size and device are ignored.
void trtalloc_torch_free(void *memory, size_t size, int device, void *stream);

// For PyTorch's set_record_stream_fn: trtalloc_record_stream with trtalloc_default(). NULL is ignored.
void trtalloc_torch_record_stream(void *memory, void *stream);

// For PyTorch's set_init_fn: opens the driver, so that a failure is logged when PyTorch starts.
void trtalloc_torch_init(int device_count);

// For PyTorch's set_reset_fn, which torch.cuda.empty_cache() calls: trtalloc_trim to 0 with trtalloc_default(), on
// each device.
void trtalloc_torch_reset(void);

// For PyTorch's set_memory_fraction_fn: trtalloc_set_limit with trtalloc_default(), to that fraction of the device's
// memory, from 0 to 1. The limit is the pool's, so it holds for all users of the pool together.
void trtalloc_torch_memory_fraction(double fraction, int device);

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
