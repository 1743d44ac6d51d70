/* trtalloc for other frameworks: functions with the types that the frameworks' hooks require. All use trtalloc_default().
   Pass a function to its framework by address or by name. Generated from hooks.rs and dlpack.rs of src/ffi/c by
   tests/library/header.rs. */

#ifndef TRTALLOC_HOOKS_H
#define TRTALLOC_HOOKS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

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
// stream on which the memory was allocated. Where that is a thread's default stream, which only its own thread can name, this is
// trtalloc_deallocate. Size and device are ignored.
void trtalloc_torch_free(void *memory,
                         size_t size,
                         int device,
                         void *stream);

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

/* ---------------------------------------------------------------
   Blocks that owners share, for DLPack and for the Python package
   --------------------------------------------------------------- */

// A block of trtalloc_default() that several owners share. A pointer to it is one owner.
typedef struct trtalloc_dlpack_block trtalloc_dlpack_block;

// What a shared block is.
typedef struct trtalloc_dlpack_info {
  // Its address.
  void *memory;
  // Bytes, as they were requested.
  uint64_t bytes;
  // How many owners it has.
  uint64_t owners;
  // DLPack's type of the device: 2 for CUDA memory, 3 for pinned host memory.
  int32_t device_type;
  // DLPack's number of the device: 0 for pinned host memory.
  int32_t device;
} trtalloc_dlpack_info;

// The addresses of a Python interpreter's functions for capsules.
typedef struct trtalloc_dlpack_python {
  // PyCapsule_New.
  void *capsule_new;
  // PyCapsule_IsValid.
  void *capsule_is_valid;
  // PyCapsule_GetPointer.
  void *capsule_get_pointer;
} trtalloc_dlpack_python;

// Allocates `size` bytes or more, as trtalloc_allocate_on does with trtalloc_default(), as a block that owners share. The
// caller is its first owner. `stream` (void*)-1: no stream, as trtalloc_allocate. Returns NULL if the request cannot be
// satisfied, and for memory that is not CUDA's.
struct trtalloc_dlpack_block *trtalloc_dlpack_allocate(uint64_t size,
                                                       uint64_t alignment,
                                                       uint32_t flags,
                                                       int32_t device,
                                                       void *stream);

// Writes the block's address, size, device and number of owners to `*out`. Returns false on failure.
bool trtalloc_dlpack_get(struct trtalloc_dlpack_block *block, struct trtalloc_dlpack_info *out);

// Makes a block larger or smaller that was allocated with TRTALLOC_RESIZABLE, as trtalloc_reallocate does. Fails if the
// block has another owner. Returns false on failure; the block is then unchanged.
bool trtalloc_dlpack_reallocate(struct trtalloc_dlpack_block *block, uint64_t new_size);

// Removes an owner; the last one frees the block. It is freed on the stream on which it was allocated, after the work
// queued so far there and on the streams to which it was exported. Otherwise, and if `ordered` was false in any of these
// calls, it is freed as trtalloc_deallocate does; so it is where its stream is the default stream of another thread or context
// than the caller's. Pass false if the block was used on further streams, or if its stream is destroyed before the last owner
// is removed. NULL is ignored.
void trtalloc_dlpack_release(struct trtalloc_dlpack_block *block,
                             bool ordered);

// Returns a new owner of the block as a DLManagedTensorVersioned* (`versioned`, of DLPack 1.0) or as a DLManagedTensor*, whose
// deleter removes the owner. The tensor has the element type of DLPack's `code` and `bits`, and `rank` extents, from the block's
// beginning. `stream` is the consumer's: its work from now on waits for what is queued on the block's own stream, and
// the free waits for it. (void*)-1: the consumer orders its work itself, on streams that it does not name. If the block's stream
// is the default stream of another thread, which no call on this thread can name, the consumer waits for all work that is queued
// in the context; that is refused before CUDA 12.5, and once a capture is known. Returns NULL on failure.
void *trtalloc_dlpack_export(struct trtalloc_dlpack_block *block,
                             uint8_t code,
                             uint8_t bits,
                             const int64_t *extents,
                             int32_t rank,
                             void *stream,
                             bool versioned);

// Returns a new Python capsule (a PyObject*) of what trtalloc_dlpack_export returned, as a `__dlpack__` method must: a
// consumer takes the tensor and renames the capsule, or the capsule calls the tensor's deleter when it is destroyed.
// The caller holds the interpreter's lock. NULL if an address is NULL, and, with the interpreter's error set, if it has
// no memory; the tensor is then deleted.
void *trtalloc_dlpack_capsule(const struct trtalloc_dlpack_python *python, void *tensor, bool versioned);

#ifdef __cplusplus
}  /* extern "C" */
#endif

#endif  /* TRTALLOC_HOOKS_H */
