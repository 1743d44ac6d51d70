/* trtalloc: a GPU memory allocator for TensorRT. Generated from src/ffi/c by tests/library/header.rs. */

#ifndef TRTALLOC_TRTALLOC_H
#define TRTALLOC_TRTALLOC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Rules for every function:
   - It may be called from any thread. An allocator is NULL, which is refused, or came from this library.
   - A function that fails leaves the reason for trtalloc_last_status and trtalloc_last_error. Where it returns a pointer or a
     bool, NULL or false means that it failed. A call that succeeds leaves the last reason as it is. A call that fails
     writes to no other place that it is given, except that trtalloc_create and trtalloc_create_from set `*out` to NULL.
   - Sizes are bytes. `device` is -1, the current one, or a device that exists.
   - A stream is a CUstream or cudaStream_t; NULL is the legacy default stream of the current context. A program that is compiled
     with per-thread default streams passes cudaStreamPerThread, on the thread whose stream it is.
   - In the child of a fork nothing can be allocated or freed if the parent has used an allocator: it must call exec first.
     While the process exits, requests are refused, and frees are accepted.
   - Nothing is written to stdout. Only trtalloc_torch_malloc_or_throw throws an exception. */

/* A bit of `flags`: trtalloc_reallocate may change the block's size. TensorRT's AllocatorFlag::kRESIZABLE. */
#define TRTALLOC_RESIZABLE 1u

#ifdef __cplusplus
extern "C" {
#endif

/* -----------------------------
   Status, last failure, version
   ----------------------------- */

// The result of a call. trtalloc_last_error explains a failure.
typedef enum trtalloc_status {
  // The call succeeded.
  TRTALLOC_STATUS_OK = 0,
  // An argument is invalid: a null pointer, an option that cannot be read, an address that is not a block's.
  TRTALLOC_STATUS_INVALID_ARGUMENT = 1,
  // The request cannot be satisfied within the limit and the device's memory.
  TRTALLOC_STATUS_OUT_OF_MEMORY = 2,
  // Not included in this build, or not possible with this driver or for this block.
  TRTALLOC_STATUS_UNSUPPORTED = 3,
  // A driver call failed.
  TRTALLOC_STATUS_DRIVER = 4,
  // A file could not be read or written.
  TRTALLOC_STATUS_IO = 5,
  // An internal error of the library. The call was undone as far as possible.
  TRTALLOC_STATUS_PANIC = 6,
} trtalloc_status;

// The reason of this thread's last failure, as text. Never NULL; empty if no call has failed. Valid until the thread's
// next call of this library, except trtalloc_last_status. While the thread or the process ends, the text of an earlier
// failure is gone.
const char *trtalloc_last_error(void);

// The status of this thread's last failure, TRTALLOC_STATUS_OK if no call has failed. It belongs to the text of
// trtalloc_last_error, so a call that succeeds leaves it unchanged.
enum trtalloc_status trtalloc_last_status(void);

// The library's version, as "0.1.0". Valid for ever.
const char *trtalloc_version(void);

/* ----------
   Allocators
   ---------- */

// An allocator: a pool for each device. It is opaque and safe to use from any thread at any time. It is never freed:
// after trtalloc_destroy it stays valid, and every request returns NULL. Its tables stay in the host's memory, so create
// one for the process or for each model, not one for each request.
typedef struct trtalloc_allocator trtalloc_allocator;

// Creates an allocator and opens the driver. `options` is "key=value,key=value", or NULL. For keys that it does not name,
// the environment's TRTALLOC_KEY counts, then the default; a process with another user's rights (setuid) does not read
// the environment. Fails if there is no driver, or if an option cannot be read.
// `*out` is set to the allocator, or to NULL on failure. Pass it to trtalloc_destroy when it is no longer needed.
trtalloc_status trtalloc_create(const char *options,
                                struct trtalloc_allocator **out);

// Creates an allocator over `bytes` bytes of external memory at `base`: a device's memory, pinned memory or any other.
// The caller keeps owning the memory: the allocator never accesses it and never frees it. It must stay valid until its
// last block is freed. All of it belongs to one device: that of `device=`, or the current one. `base` need not be
// aligned: the address of each block is a multiple of the rule's alignment (`rule=`) or of the request's, whichever is
// larger. Memory too small for one block is an invalid argument.
// No driver is needed. Where driver=auto finds no device, and with driver=none, the allocator cannot know when work
// completes. Then a block that is freed without a stream may be reused at once, so free it after its last use has
// ended. Calls with a stream are refused unless streams=trusted is set; then only the same stream reuses what was
// freed on it. `options` and `out` are as in trtalloc_create.
trtalloc_status trtalloc_create_from(void *base, uint64_t bytes, const char *options, struct trtalloc_allocator **out);

// The process's own allocator, with the options of the environment (TRTALLOC_KEY). It is never NULL and never
// destroyed. Its first allocation opens the driver; if that fails, every request returns NULL for the same reason.
struct trtalloc_allocator *trtalloc_default(void);

// Closes an allocator: new requests return NULL. Blocks that are still allocated stay valid and can be freed through
// the allocator or its adapters, but not resized; the memory is released with the last block. The call waits for work that
// may use it, at most wait_ms; memory that work uses longer is released later. The handler of trtalloc_on_oom is removed.
// NULL and a second call do nothing. trtalloc_default() is not closed.
void trtalloc_destroy(struct trtalloc_allocator *allocator);

/* ------
   Blocks
   ------ */

// Allocates `size` bytes or more on the current device, for use on any stream at once. Returns NULL if the request
// cannot be satisfied, or if `size` is 0. `alignment` is 0 or a power of two up to 2 MiB. `flags` is 0 or
// TRTALLOC_RESIZABLE; other bits are ignored, with one line in the log.
// The caller owns the block until it is freed.
void *trtalloc_allocate(trtalloc_allocator *allocator, uint64_t size, uint64_t alignment, uint32_t flags);

// As trtalloc_allocate, for use by work queued on `stream` from now on (a CUstream or cudaStream_t; NULL is the
// default stream of the current context), on the stream's device.
void *trtalloc_allocate_async(trtalloc_allocator *allocator,
                              uint64_t size,
                              uint64_t alignment,
                              uint32_t flags,
                              void *stream);

// As trtalloc_allocate_async, on `device`, which must be the stream's device; -1 stands for the stream's device.
void *trtalloc_allocate_on(trtalloc_allocator *allocator,
                           int32_t device,
                           uint64_t size,
                           uint64_t alignment,
                           uint32_t flags,
                           void *stream);

// Makes a block larger or smaller that was allocated with TRTALLOC_RESIZABLE, and keeps the bytes that both sizes
// have. With virtual memory nothing is copied. Returns the block's address, which may be another one. Returns NULL on
// failure, and then the old block is unchanged. The call may wait for pending work, at most `wait_ms`. The bytes that
// the block grows by may be used at once, on any stream: no work on a block that had them before is pending. Only work
// that the caller itself has queued on the block may still use what the block gave up when it became smaller.
// `alignment` is the one with which the block was allocated. With virtual memory the block keeps that alignment: 0
// stands for it, and any other value is refused, except the smallest one (512 for CUDA). Where the bytes are copied to
// a new block (backing=malloc, passthrough=1), the new block has `alignment`, or the smallest alignment if it is 0.
void *trtalloc_reallocate(trtalloc_allocator *allocator, void *address, uint64_t alignment, uint64_t new_size);

// Frees a block. Work queued so far may still use it: on any stream of a context that has called the allocator for this
// device, or of the primary context of a device that can use the block. Returns true if the block was freed, and for
// NULL.
bool trtalloc_deallocate(trtalloc_allocator *allocator, void *memory);

// Frees a block. Work queued so far on `stream`, and on the streams of trtalloc_record_stream, may still use it. Work
// on other streams must have completed, or be ordered before this point of `stream`. Returns true if the block was
// freed, and for NULL.
bool trtalloc_deallocate_async(trtalloc_allocator *allocator, void *memory, void *stream);

/* -------
   Streams
   ------- */

// Declares that the block is also used on `stream`: once freed, it is not reused before the work queued there has
// completed.
trtalloc_status trtalloc_record_stream(trtalloc_allocator *allocator, void *memory, void *stream);

// Announces that `stream` is about to be destroyed, so that other streams can reuse what it freed. Not calling it is
// safe.
trtalloc_status trtalloc_stream_release(trtalloc_allocator *allocator, void *stream);

/* ---------------------------------------------
   Limits, and requests that cannot be satisfied
   --------------------------------------------- */

// Called when a request cannot be satisfied. Returning true makes the allocator try the request again. `context` is
// the pointer that trtalloc_on_oom received.
typedef bool (*trtalloc_oom_handler)(void *context, int32_t device, uint64_t size);

// Limits the memory that a device's pool holds; 0: no limit. If the pool holds more now, it returns the excess to the
// driver as memory becomes free. `device` -1: the current one. Opens the driver if trtalloc_default() has not been
// used yet.
trtalloc_status trtalloc_set_limit(trtalloc_allocator *allocator, int32_t device, uint64_t bytes);

// Returns free memory to the driver until at most `keep_bytes` stay reserved. `device` -1: the current one.
// `*released` is set to the number of bytes returned; `released` may be NULL.
trtalloc_status trtalloc_trim(trtalloc_allocator *allocator, int32_t device, uint64_t keep_bytes, uint64_t *released);

// Sets the function that is called, with `context`, when a request cannot be satisfied. It replaces the one set
// before; NULL sets none. It runs on the requesting thread, so it may run on several threads at once. It may use the
// allocator: allocate, free, trim. A request of its own that cannot be satisfied calls no handler. One request
// is tried again at most 100 times. A call that has begun may still be running when this function or
// trtalloc_destroy returns; trtalloc_destroy removes the handler. The handler must return: an exception that leaves it
// ends the process. Opens the driver if trtalloc_default() has not been used yet.
trtalloc_status trtalloc_on_oom(trtalloc_allocator *allocator, trtalloc_oom_handler handler, void *context);

/* ----------
   Statistics
   ---------- */

// One device's statistics, in bytes or counts. New fields are added only at the end.
typedef struct trtalloc_stats {
  // Bytes allocated, after rounding.
  uint64_t allocated;
  // Highest `allocated` since creation or trtalloc_stats_reset_peaks.
  uint64_t allocated_peak;
  // Bytes requested, before rounding.
  uint64_t requested;
  // Bytes that are free and reusable, by the stream that freed them or by any stream.
  uint64_t cached;
  // Bytes freed but not yet reusable.
  uint64_t pending;
  // Physical memory held.
  uint64_t reserved;
  // Highest `reserved` since creation or trtalloc_stats_reset_peaks.
  uint64_t reserved_peak;
  // The limit on `reserved`; 0: none.
  uint64_t limit;
  // Requests that succeeded.
  uint64_t allocations;
  // Blocks freed.
  uint64_t frees;
  // Successful calls of trtalloc_reallocate.
  uint64_t reallocations;
  // Those that kept the block's address.
  uint64_t reallocations_in_place;
  // Requests refused because memory ran out.
  uint64_t out_of_memory;
  // Driver calls that submit work or may block.
  uint64_t driver_calls;
  // Driver calls that only query.
  uint64_t driver_queries;
  // Bytes copied by trtalloc_reallocate, for blocks that have no pages of their own.
  uint64_t bytes_copied;
  // Handles of physical memory moved to another address to make a contiguous range.
  uint64_t remaps;
  // Bytes free on the device; 0 where the driver does not say. Only trtalloc_stats_get and trtalloc_stats_json
  // ask it.
  uint64_t device_free;
  // The device's memory; 0 as above.
  uint64_t device_total;
  // Bytes of the device that others hold: contexts, kernels, other allocators and other processes; 0 as above.
  uint64_t held_by_others;
  // The largest range that is free for every stream. A request of this size needs no more memory.
  uint64_t largest_free;
  // Times that a request or a trim waited for work to complete.
  uint64_t waits;
  // Nanoseconds of these waits.
  uint64_t wait_ns;
  // Trims: calls of trtalloc_trim, limits that were lowered, and a framework's calls to empty the cache.
  uint64_t trims;
  // Nanoseconds of these trims.
  uint64_t trim_ns;
  // Nanoseconds of the calls counted in driver_calls.
  uint64_t driver_ns;
  // Bytes that requests can still have in total: `cached` and `pending`, and what the limit, the headroom and the
  // device leave beyond `reserved`. The second part is 0 where device_total is, for external memory, and for pinned
  // memory without a limit.
  uint64_t available;
  // Bytes of `cached` and `pending` that are free for one stream or for none, because the work that used them is not
  // known to have completed. No request has to wait for the rest of `available`. trtalloc_stats_get queries no event,
  // so work counts until a request has found it complete.
  uint64_t awaiting_work;
} trtalloc_stats;

// Writes a device's statistics to `out`: the first min(out_size, the size that this library knows) bytes, and zeroes
// up to `out_size`. `out_size` is the caller's sizeof(trtalloc_stats). `device` -1: the current one.
// trtalloc_default() initializes no driver before its first allocation. Until then all fields are 0 except `limit`. A
// limit in percent of the device's memory is known once the process itself has initialized CUDA; before, and with
// driver=ascend, it is 0.
trtalloc_status trtalloc_stats_get(trtalloc_allocator *allocator,
                                   int32_t device,
                                   struct trtalloc_stats *out,
                                   size_t out_size);

// Sets a device's peaks to the present values. `device` -1: the current one.
trtalloc_status trtalloc_stats_reset_peaks(trtalloc_allocator *allocator, int32_t device);

// Writes a device's statistics to `buffer` as one JSON object: the fields of trtalloc_stats, and `tags`, a list with
// an object for each tag. `device` -1: the current one. As snprintf, it writes at most `size` bytes including a
// closing NUL, and returns the length of the whole text without the NUL; 0 on failure. `buffer` may be NULL if `size`
// is 0.
size_t trtalloc_stats_json(trtalloc_allocator *allocator, int32_t device, char *buffer, size_t size);

// Writes the statistics of every device and of its tags to `buffer` in the OpenMetrics text format, which Prometheus
// reads; otherwise as trtalloc_stats_json.
size_t trtalloc_metrics(trtalloc_allocator *allocator, char *buffer, size_t size);

/* ----
   Tags
   ---- */

// One tag's statistics on one device, in bytes or counts. New fields are added only at the end.
typedef struct trtalloc_tag_stats {
  // Bytes allocated, after rounding.
  uint64_t allocated;
  // Highest `allocated` since creation or trtalloc_stats_reset_peaks.
  uint64_t allocated_peak;
  // The limit on `allocated`; 0: none.
  uint64_t limit;
  // Requests that succeeded.
  uint64_t allocations;
  // Blocks freed, by any thread.
  uint64_t frees;
  // Requests refused because of the tag's limit or because memory ran out.
  uint64_t out_of_memory;
} trtalloc_tag_stats;

// Sets the tag of this thread's allocations from now on, in every allocator: the name of an engine, a model or a
// framework. NULL: no tag. trtalloc_stats_json and trtalloc_metrics report what each tag holds, and
// trtalloc_set_tag_limit limits it. A tag has at most 255 bytes of UTF-8, and a process at most 1023 tags; further
// ones are refused, and the thread keeps the tag from before. The text is copied.
void trtalloc_set_tag(const char *tag);

// Limits the bytes that blocks with one tag may take of a device's pool, after rounding; 0: no limit. A request beyond
// the limit returns NULL; blocks that are already allocated stay. `device` -1: the current one. Opens the driver if
// trtalloc_default() has not been used yet.
trtalloc_status trtalloc_set_tag_limit(trtalloc_allocator *allocator, int32_t device, const char *tag, uint64_t bytes);

// Writes the statistics of one tag, or of an adapter's name, to `out`, as trtalloc_stats_get writes a device's. All
// are 0 for a tag under which the device has no block and no limit yet.
trtalloc_status trtalloc_tag_stats_get(trtalloc_allocator *allocator,
                                       int32_t device,
                                       const char *tag,
                                       struct trtalloc_tag_stats *out,
                                       size_t out_size);

/* ---------------------
   History and snapshots
   --------------------- */

// Sets what is recorded from now on. The first word is "off", "state" (for live blocks, where they were allocated) or
// "all" (also every event). Options follow: ",context=none|state|alloc|all" (what gets a stack),
// ",stacks=none|native|python|all", ",max_entries=N" (how many events are kept, 100000 by default), ",device=N" (only
// that device is recorded). May be called at any time, from any thread. If only `context` or `stacks` change, the
// history continues; any other change begins a new one. Opens the driver if trtalloc_default() has not been used yet.
trtalloc_status trtalloc_history(trtalloc_allocator *allocator, const char *options);

// Writes a snapshot of the memory and the history to the file `path`. The suffix chooses the format: .pickle for
// PyTorch's memory viewer, .json, or .html, a page for a browser that needs no network. The file appears once it is
// complete; a failure leaves the file that was there before, or none. Other threads wait only while the state is
// copied.
trtalloc_status trtalloc_snapshot(trtalloc_allocator *allocator, const char *path);

/* --------
   TensorRT
   -------- */

// The allocator as an nvinfer1::IGpuAllocator* for the ABI of `tensorrt_version`: NV_TENSORRT_VERSION, or the version
// that createInfer* receives. Every call returns the same pointer. The object belongs to the allocator: the caller
// never deletes it, and it stays valid for ever. Returns NULL if this library does not know that version's interface.
void *trtalloc_tensorrt_allocator(trtalloc_allocator *allocator, int32_t tensorrt_version);

// As trtalloc_tensorrt_allocator, an adapter whose blocks count for `name`: a model's or an engine's. It holds for every
// request through the adapter, whichever thread TensorRT calls from and whatever that thread's tag is. A name is a tag:
// trtalloc_stats_json, trtalloc_metrics, snapshots and reports show what each holds, and trtalloc_set_tag_limit limits it.
// The same name gives the same adapter. The text is copied. What is not UTF-8 in it is replaced, and a name of more than
// 255 bytes is cut. NULL or "", and a further name where the process has 1023 tags, give the adapter without a name.
void *trtalloc_tensorrt_allocator_named(trtalloc_allocator *allocator,
                                        int32_t tensorrt_version,
                                        const char *name);

// Switches injection on (1) or off (0): whether objects that TensorRT creates from now on allocate through
// trtalloc_default(). It has an effect only if this library's functions come before TensorRT's creation functions: the
// library was preloaded, linked before TensorRT, or opened with RTLD_GLOBAL before the library that uses TensorRT. A
// program that looks these functions up with dlsym must call this first. Returns TRTALLOC_STATUS_UNSUPPORTED if the
// environment has TRTALLOC_DISABLE=1.
trtalloc_status trtalloc_inject(int32_t on);

/* --------------------------
   Output tensors of TensorRT
   -------------------------- */

// An output tensor, as TensorRT last requested it.
typedef struct trtalloc_output {
  // Its address; NULL before the first enqueue that requested it.
  void *memory;
  // Bytes of the tensor.
  uint64_t bytes;
  // Bytes of its memory.
  uint64_t capacity;
  // How many of `extents` are valid.
  int32_t rank;
  // The tensor's shape.
  int64_t extents[8];
} trtalloc_output;

// Returns a new nvinfer1::IOutputAllocator* for the ABI of `tensorrt_version` (8.5 and later), for
// IExecutionContext::setOutputAllocator. One execution context needs one for all its outputs; two contexts must not
// share one. An output's block grows in place. It belongs to the tensor until the context's next enqueue requests
// more, or the block is released or taken; until then this library does not change it. The output allocator belongs to
// the allocator: the caller never deletes it, and it stays valid for ever, so create one for each context and not for
// each enqueue. Returns NULL if this library does not know that version's interface.
void *trtalloc_tensorrt_output_allocator(trtalloc_allocator *allocator, int32_t tensorrt_version);

// Writes one tensor's address, size and shape to `*out`. Fails if TensorRT has not requested the tensor yet, and while it
// requests more memory for it.
trtalloc_status trtalloc_output_get(void *output_allocator,
                                    const char *tensor,
                                    struct trtalloc_output *out);

// As trtalloc_output_get, and the memory becomes the caller's, who frees it with trtalloc_deallocate or
// trtalloc_deallocate_async. The context's next enqueue gets other memory.
trtalloc_status trtalloc_output_take(void *output_allocator, const char *tensor, struct trtalloc_output *out);

// Frees one tensor's memory, or with NULL that of all tensors, as cudaFree would. An allocator can release all its
// memory only after this call. The output allocator stays usable. What an enqueue requests at this moment, on another
// thread or around an out-of-memory handler, is not freed.
trtalloc_status trtalloc_output_release(void *output_allocator, const char *tensor);

#ifdef __cplusplus
}  /* extern "C" */
#endif

/* Hooks of other frameworks, for programs that expect them in this header. */
#include <trtalloc/hooks.h>

#endif  /* TRTALLOC_TRTALLOC_H */
