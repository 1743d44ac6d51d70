/* trtalloc: a GPU memory allocator for TensorRT. Generated from src/ffi/c by tests/header.rs. */

#ifndef TRTALLOC_TRTALLOC_H
#define TRTALLOC_TRTALLOC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Rules for every function:
   - It may be called from any thread. An allocator is NULL, which is refused, or came from this library.
   - A function that fails leaves the reason for trtalloc_last_status and trtalloc_last_error. Where it returns a pointer or a
     bool, NULL or false means that it failed. A call that succeeds leaves the last reason as it is.
   - Sizes are bytes. `device` is -1, the current one, or a device that exists.
   - A stream is a CUstream or cudaStream_t; NULL is the legacy default stream of the current context.
   - Nothing is written to stdout, and nothing is thrown but by trtalloc_torch_malloc_or_throw. */

/* A bit of `flags`: trtalloc_reallocate may change the block's size. TensorRT's AllocatorFlag::kRESIZABLE. */
#define TRTALLOC_RESIZABLE 1u

#ifdef __cplusplus
extern "C" {
#endif

/* -----------------------------
   Status, last failure, version
   ----------------------------- */

// What became of a call. trtalloc_last_error says why.
typedef enum trtalloc_status {
  // It was done.
  TRTALLOC_STATUS_OK = 0,
  // An argument has no meaning: a null pointer, an option that cannot be read, an address that is not a block's.
  TRTALLOC_STATUS_INVALID_ARGUMENT = 1,
  // The request cannot be met within the limit and the device's memory.
  TRTALLOC_STATUS_OUT_OF_MEMORY = 2,
  // Not in this build, or not possible with this driver or for this block.
  TRTALLOC_STATUS_UNSUPPORTED = 3,
  // A driver call failed.
  TRTALLOC_STATUS_DRIVER = 4,
  // A file could not be read or written.
  TRTALLOC_STATUS_IO = 5,
  // The library itself failed; the call was undone as far as that is possible.
  TRTALLOC_STATUS_PANIC = 6,
} trtalloc_status;

// Why this thread's last failing call failed, in words. Never NULL; empty where none has failed. Valid until the thread's
// next call of this library but trtalloc_last_status.
const char *trtalloc_last_error(void);

// Why this thread's last failing call failed, as a number: TRTALLOC_STATUS_OK where none has failed. It goes with
// trtalloc_last_error, so a call that succeeds leaves it as it is.
enum trtalloc_status trtalloc_last_status(void);

// The library's version, as "0.1.0". Valid for ever.
const char *trtalloc_version(void);

/* ----------
   Allocators
   ---------- */

// An allocator: a pool for each device. Opaque, and safe to use from any thread at any time. It is never freed: after
// trtalloc_destroy the allocator stays valid and answers every request with NULL.
typedef struct trtalloc_allocator trtalloc_allocator;

// Makes an allocator. `options` is "key=value,key=value", or NULL for the defaults; the environment is not read. Opens
// the driver, and fails where there is none, or an option cannot be read.
// `*out` gets the allocator, or NULL on failure; give it to trtalloc_destroy when it is no longer needed.
trtalloc_status trtalloc_create(const char *options, struct trtalloc_allocator **out);

// Makes an allocator over `bytes` bytes at `base`: a device's memory, pinned memory or any other. It stays the caller's: it
// is never touched and never freed, must live until the last block of it is given back, and is one device's (`device=`, or
// the current one). `base` may lie anywhere: blocks start at multiples of the rule's alignment (`rule=`) or of the
// request's, whichever is larger, as addresses. Memory in which not one block has room is an invalid argument.
// No driver is needed. Where driver=auto finds no device, or with driver=none, nothing can be known of work: a block that is
// freed without a stream may be handed out at once, so free it when every use is over. Calls with a stream are refused then,
// unless streams=trusted: what is freed on a stream serves that stream alone. `options` and `out` as in trtalloc_create.
trtalloc_status trtalloc_create_from(void *base,
                                     uint64_t bytes,
                                     const char *options,
                                     struct trtalloc_allocator **out);

// The process's own allocator, with the options of the environment (TRTALLOC_KEY). Never NULL, never destroyed. Opens no
// driver before its first allocation; if that fails, every request gets NULL for the same reason.
struct trtalloc_allocator *trtalloc_default(void);

// Closes an allocator: new requests get NULL; blocks still out stay valid and may be freed through it or its adapters;
// memory goes with the last block. NULL and a second time are harmless; trtalloc_default() is left as it is.
void trtalloc_destroy(struct trtalloc_allocator *allocator);

/* ------
   Blocks
   ------ */

// A block of `size` bytes or more on the current device, for use on any stream at once; NULL where the request cannot be
// met, and where `size` is 0. `alignment` is 0 or a power of two up to 2 MiB. `flags` is 0 or TRTALLOC_RESIZABLE; other
// bits are ignored, with one line in the log.
// The block is the caller's until it is given back.
void *trtalloc_allocate(trtalloc_allocator *allocator,
                        uint64_t size,
                        uint64_t alignment,
                        uint32_t flags);

// As trtalloc_allocate, for use by work queued on `stream` from now on (a CUstream or cudaStream_t; NULL is the default
// stream of the current context), on the stream's device.
void *trtalloc_allocate_async(trtalloc_allocator *allocator,
                              uint64_t size,
                              uint64_t alignment,
                              uint32_t flags,
                              void *stream);

// As trtalloc_allocate_async, on `device`, which is the stream's; -1: the stream's, whichever it is.
void *trtalloc_allocate_on(trtalloc_allocator *allocator,
                           int32_t device,
                           uint64_t size,
                           uint64_t alignment,
                           uint32_t flags,
                           void *stream);

// Makes a block that was allocated TRTALLOC_RESIZABLE larger or smaller and keeps the bytes that both sizes have; where
// virtual memory is there, none is copied. Returns the block's address, which may be another; NULL where it could not be
// done, and then the old block stands as it was.
// `alignment` is the one that the block was allocated with. Where virtual memory is there, the block keeps that alignment, 0
// stands for it, and any other but the smallest (512 for CUDA) is refused. Where the bytes are copied to a new block
// (backing=malloc, passthrough=1), the new block has `alignment`, and with 0 the smallest.
void *trtalloc_reallocate(trtalloc_allocator *allocator,
                          void *address,
                          uint64_t alignment,
                          uint64_t new_size);

// Takes a block back. Work queued so far, on any stream, may still use it. True where it was taken; NULL always is.
bool trtalloc_deallocate(trtalloc_allocator *allocator, void *memory);

// Takes a block back. Work queued so far on `stream` may still use it, and on the streams of trtalloc_record_stream; work
// on others must have completed, or be ordered before this point of `stream`. True where it was taken; NULL always is.
bool trtalloc_deallocate_async(trtalloc_allocator *allocator,
                               void *memory,
                               void *stream);

/* -------
   Streams
   ------- */

// Declares that the block is also used on `stream`: once it is freed, it waits for the work queued there too.
trtalloc_status trtalloc_record_stream(trtalloc_allocator *allocator, void *memory, void *stream);

// Says that `stream` is about to be destroyed, so that what it freed can serve others. Not calling it is safe.
trtalloc_status trtalloc_stream_release(trtalloc_allocator *allocator, void *stream);

/* ---------------------------------------
   Limits, and requests that cannot be met
   --------------------------------------- */

// Called when a request cannot be met; true asks for another try. `context` is what trtalloc_on_oom was given.
typedef bool (*trtalloc_oom_handler)(void *context, int32_t device, uint64_t size);

// Caps what a device's pool holds; 0: no cap. What it holds beyond the cap it gives back as that falls free. `device` -1:
// the current one. Opens the driver where trtalloc_default() has not been used yet.
trtalloc_status trtalloc_set_limit(trtalloc_allocator *allocator,
                                   int32_t device,
                                   uint64_t bytes);

// Gives memory that is free back to the driver until at most `keep_bytes` stay reserved. `device` -1: the current one.
// `*released` gets the bytes given back; `released` may be NULL.
trtalloc_status trtalloc_trim(trtalloc_allocator *allocator, int32_t device, uint64_t keep_bytes, uint64_t *released);

// Sets what is called, with `context`, when a request cannot be met, in place of what was set before; NULL: nothing. It is
// called on the requesting thread, on several threads at once where several ask, and may use the allocator: allocate, free,
// trim. A request of its own that cannot be met does not call it again. One request is tried at most 100 times more. A call
// that has begun may still be running when this returns. Opens the driver where trtalloc_default() has not been used yet.
trtalloc_status trtalloc_on_oom(trtalloc_allocator *allocator,
                                trtalloc_oom_handler handler,
                                void *context);

/* ----------
   Statistics
   ---------- */

// One device's figures, in bytes or counts. Fields are only ever added, at the end.
typedef struct trtalloc_stats {
  // Bytes handed out, as rounded.
  uint64_t allocated;
  // Highest `allocated` since creation or trtalloc_stats_reset_peaks.
  uint64_t allocated_peak;
  // Bytes asked for, before rounding.
  uint64_t requested;
  // Bytes that are free and reusable: by the stream that freed them, or by any.
  uint64_t cached;
  // Bytes freed but not yet reusable.
  uint64_t pending;
  // Physical memory held.
  uint64_t reserved;
  // Highest `reserved` since creation or trtalloc_stats_reset_peaks.
  uint64_t reserved_peak;
  // The limit on `reserved`; 0: none.
  uint64_t limit;
  // Requests that were met.
  uint64_t allocations;
  // Blocks taken back.
  uint64_t frees;
  // Successful calls of trtalloc_reallocate.
  uint64_t reallocations;
  // Those that kept the address.
  uint64_t reallocations_in_place;
  // Requests refused for want of memory.
  uint64_t out_of_memory;
  // Driver calls made that submit work or may block.
  uint64_t driver_calls;
  // Driver calls made that only ask.
  uint64_t driver_queries;
  // Bytes copied by trtalloc_reallocate, where virtual memory is missing.
  uint64_t bytes_copied;
  // Pieces of memory moved to another address to make a contiguous range.
  uint64_t remaps;
} trtalloc_stats;

// Writes a device's figures to `out`: the first min(out_size, what this library knows) bytes, and zeroes up to
// `out_size`. `out_size` is sizeof(trtalloc_stats) as the caller was compiled. `device` -1: the current one.
// `limit` is right from the beginning. trtalloc_default() touches no driver before its first allocation: until then the
// rest is zeroes, and so is a limit in percent of the device's memory, which is not known yet.
trtalloc_status trtalloc_stats_get(trtalloc_allocator *allocator,
                                   int32_t device,
                                   struct trtalloc_stats *out,
                                   size_t out_size);

// Starts a device's peaks anew from what is now. `device` -1: the current one.
trtalloc_status trtalloc_stats_reset_peaks(trtalloc_allocator *allocator, int32_t device);

// Writes a device's figures as one JSON object to `buffer`: the names of trtalloc_stats, and `tags`, a list with an object
// for each tag. `device` -1: the current one. As snprintf, it writes at most `size` bytes with a closing NUL and returns the
// bytes that the whole text has without it; 0 where it failed. `buffer` may be NULL where `size` is 0.
size_t trtalloc_stats_json(trtalloc_allocator *allocator,
                           int32_t device,
                           char *buffer,
                           size_t size);

// Writes the figures of every device and of its tags to `buffer` in the OpenMetrics text format, for a server to expose to
// Prometheus; otherwise as trtalloc_stats_json.
size_t trtalloc_metrics(trtalloc_allocator *allocator,
                        char *buffer,
                        size_t size);

/* ----
   Tags
   ---- */

// Names this thread's allocations from now on, in every allocator: an engine, a model, a framework. NULL: no name. What a
// name holds is in trtalloc_stats_json and trtalloc_metrics, and can be limited by trtalloc_set_tag_limit. A name has
// at most 255 bytes of UTF-8, and a process at most 1023 of them; another is refused, and the one before stays. The text is
// not kept by pointer.
void trtalloc_set_tag(const char *tag);

// Caps what blocks of one tag may take of a device's pool, in bytes as handed out; 0: no cap. A request beyond it gets NULL,
// and memory that is out already stays. `device` -1: the current one. Opens the driver where trtalloc_default() has not been
// used yet.
trtalloc_status trtalloc_set_tag_limit(trtalloc_allocator *allocator,
                                       int32_t device,
                                       const char *tag,
                                       uint64_t bytes);

/* ---------------------
   History and snapshots
   --------------------- */

// Sets what is recorded from now on: "off", "state" (of what is live, where it was allocated) or "all" (and every event),
// then ",context=none|state|alloc|all" (what gets a stack), ",stacks=none|native|python|all", ",max_entries=N" (events that
// are kept, 100000 by default), ",device=N" (no other one's). May be called at any time, from any thread; a history goes on
// where only `context` or `stacks` change, and begins anew where the rest does. Opens the driver where
// trtalloc_default() has not been used yet.
trtalloc_status trtalloc_history(trtalloc_allocator *allocator,
                                 const char *options);

// Writes what is held, and the history, to the file `path`, by its suffix: .pickle or .json, as PyTorch's memory viewer reads
// them, or .html, a page for a browser that needs no network. The file appears when it is whole; on a failure there is none,
// or what was there before. Other threads wait only while the state is copied.
trtalloc_status trtalloc_snapshot(trtalloc_allocator *allocator,
                                  const char *path);

/* --------
   TensorRT
   -------- */

// The allocator as an nvinfer1::IGpuAllocator* for the ABI of `tensorrt_version`: NV_TENSORRT_VERSION, or the version that
// createInfer* is given. The same pointer each time. It belongs to the allocator, is never to be deleted, and stays valid
// for ever. NULL where this library does not know that version's interface.
void *trtalloc_tensorrt_allocator(trtalloc_allocator *allocator,
                                  int32_t tensorrt_version);

// Lets what TensorRT creates from now on allocate through trtalloc_default() (1), or not (0), where this library stands in
// front of TensorRT's creation functions: where it was preloaded, linked before TensorRT, or opened RTLD_GLOBAL before what
// uses TensorRT. A program that finds those functions with dlsym has to call this first. TRTALLOC_STATUS_UNSUPPORTED where
// the environment has TRTALLOC_DISABLE=1.
trtalloc_status trtalloc_inject(int32_t on);

/* --------------------------
   Output tensors of TensorRT
   -------------------------- */

// An output tensor, as TensorRT last asked for it.
typedef struct trtalloc_output {
  // Where it is; NULL before the first enqueue that asked for it.
  void *memory;
  // Bytes of the tensor.
  uint64_t bytes;
  // Bytes that there are.
  uint64_t capacity;
  // How many of `extents` mean something.
  int32_t rank;
  // The tensor's shape.
  int64_t extents[8];
} trtalloc_output;

// A new nvinfer1::IOutputAllocator* for the ABI of `tensorrt_version` (8.5 and later), for IExecutionContext::setOutputAllocator.
// One execution context needs one for all its outputs, and no two contexts share one. An output's block grows where it lies;
// it stays the tensor's, and is not touched by us, until the context's next enqueue asks for more, or it is released or
// taken. Belongs to the allocator, is never to be deleted, and stays valid for ever. NULL where this library does not know
// that version's interface.
void *trtalloc_tensorrt_output_allocator(trtalloc_allocator *allocator,
                                         int32_t tensorrt_version);

// What an output allocator knows of one tensor. An error where TensorRT has not asked for it yet.
trtalloc_status trtalloc_output_get(void *output_allocator, const char *tensor, struct trtalloc_output *out);

// As trtalloc_output_get; the memory is the caller's from now on, to be given to trtalloc_deallocate or
// trtalloc_deallocate_async. The context's next enqueue gets other memory.
trtalloc_status trtalloc_output_take(void *output_allocator, const char *tensor, struct trtalloc_output *out);

// Gives a tensor's memory back, or with NULL that of all; as safe as cudaFree, and needed before the allocator's memory can
// all go. The output allocator stays usable.
trtalloc_status trtalloc_output_release(void *output_allocator,
                                        const char *tensor);

#ifdef __cplusplus
}  /* extern "C" */
#endif

/* Hooks of other frameworks, for programs that expect them in this header. */
#include <trtalloc/hooks.h>

#endif  /* TRTALLOC_TRTALLOC_H */
