// trtalloc for C++17: classes that own allocators and blocks, and errors as exceptions. It needs only trtalloc.h, whose
// comments apply here too. It does not need TensorRT; tensorrt.hpp is for programs that use TensorRT. A program that is compiled
// with -fno-exceptions uses the functions of trtalloc.h.
//
//     trtalloc::Allocator memory{"limit=4GiB"};
//     trtalloc::Block block = memory.block_async(1 << 20, stream);     // its destructor frees it on the stream
//
// A null stream is the program's own default stream. In a source file that is compiled with per-thread default streams
// (CUDA_API_PER_THREAD_DEFAULT_STREAM, which nvcc's --default-stream per-thread defines), that is the calling thread's, and
// otherwise the legacy one. The functions of trtalloc.h always take it for the legacy one.
#ifndef TRTALLOC_TRTALLOC_HPP
#define TRTALLOC_TRTALLOC_HPP

#include <trtalloc/trtalloc.h>

#include <atomic>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <utility>

namespace trtalloc {

// A failed call: what() gives the reason as text, status() as a number. After TRTALLOC_STATUS_OUT_OF_MEMORY the same call may
// succeed once memory becomes free. TRTALLOC_STATUS_DRIVER persists if the context has an error or was destroyed. The other
// statuses concern this call only.
class Error : public std::runtime_error {
public:
    Error(trtalloc_status status, char const* what) : std::runtime_error(what), status_(status) {}

    // This thread's last failure.
    static Error last() { return Error(trtalloc_last_status(), trtalloc_last_error()); }

    trtalloc_status status() const noexcept { return status_; }

private:
    trtalloc_status status_;
};

// Throws this thread's last failure, unless `status` is TRTALLOC_STATUS_OK.
inline void check(trtalloc_status status) {
    if (status != TRTALLOC_STATUS_OK) {
        throw Error(status, trtalloc_last_error());
    }
}

namespace detail {

// cudaStreamPerThread.
constexpr std::uintptr_t per_thread_stream = 2;

// The handle of the default stream in this source file.
#if defined(CUDA_API_PER_THREAD_DEFAULT_STREAM) || defined(__CUDA_API_PER_THREAD_DEFAULT_STREAM) || \
    defined(__CUDART_API_PER_THREAD_DEFAULT_STREAM)
constexpr std::uintptr_t default_stream = per_thread_stream;
#else
constexpr std::uintptr_t default_stream = 0;
#endif

// The handle that names the stream in calls of the library. A program may have source files of both kinds. `Default` is a part of
// the function's name, as of those that call it, so the linker does not take one for the other.
template <std::uintptr_t Default>
void* stream_handle(void* stream) noexcept {
    return stream != nullptr ? stream : reinterpret_cast<void*>(Default);
}

// A number of the calling thread that no other thread ever has.
inline std::uint64_t this_thread() noexcept {
    static std::atomic<std::uint64_t> threads{0};
    thread_local std::uint64_t const number = threads.fetch_add(1, std::memory_order_relaxed) + 1;
    return number;
}

}  // namespace detail

// Owns a block. The destructor frees it, on the stream on which it was allocated, if there was one. Another thread cannot name a
// thread's default stream, so there the destructor frees the block as trtalloc_deallocate does. The block stays valid after its
// allocator is closed. A Block can be moved.
class Block {
public:
    Block() noexcept = default;
    Block(Block&& other) noexcept { swap(other); }
    Block& operator=(Block&& other) noexcept {
        Block(std::move(other)).swap(*this);
        return *this;
    }
    Block(Block const&) = delete;
    Block& operator=(Block const&) = delete;
    ~Block() { reset(); }

    // The address on the device; null if the object is empty.
    void* get() const noexcept { return memory_; }
    explicit operator bool() const noexcept { return memory_ != nullptr; }

    // Bytes requested; 0 if the object is empty.
    std::uint64_t size() const noexcept { return size_; }

    // Frees the block now. Returns false if that was refused; trtalloc_last_error() gives the reason.
    bool reset() noexcept {
        void* const memory = release();
        bool const on_stream = on_stream_ && (thread_ == 0 || thread_ == detail::this_thread());
        return on_stream ? trtalloc_deallocate_async(allocator_, memory, stream_)
                         : memory == nullptr || trtalloc_deallocate(allocator_, memory);
    }

    // Passes the block to the caller, who frees it.
    void* release() noexcept {
        size_ = 0;
        return std::exchange(memory_, nullptr);
    }

    void swap(Block& other) noexcept {
        std::swap(allocator_, other.allocator_);
        std::swap(memory_, other.memory_);
        std::swap(size_, other.size_);
        std::swap(stream_, other.stream_);
        std::swap(on_stream_, other.on_stream_);
        std::swap(thread_, other.thread_);
    }

private:
    friend class Allocator;
    Block(trtalloc_allocator* allocator, void* memory, std::uint64_t size, void* stream, bool on_stream)
        : allocator_(allocator), memory_(memory), size_(size), stream_(stream), on_stream_(on_stream) {
        if (memory == nullptr) {
            throw Error::last();
        }
        if (on_stream && stream == reinterpret_cast<void*>(detail::per_thread_stream)) {
            thread_ = detail::this_thread();
        }
    }

    trtalloc_allocator* allocator_ = nullptr;
    void* memory_ = nullptr;
    std::uint64_t size_ = 0;
    void* stream_ = nullptr;
    bool on_stream_ = false;
    // The thread whose default stream `stream_` is; 0: it is another stream.
    std::uint64_t thread_ = 0;
};

// Owns an allocator. The destructor closes it; allocated blocks and its TensorRT interfaces stay valid. Any thread may use
// it, except for moving and assigning it. Functions that allocate or free return nullptr or false on failure, as in C, with
// the reason in trtalloc_last_status() and trtalloc_last_error(). The other functions throw Error.
class Allocator {
public:
    // `options` is "key=value,key=value".
    explicit Allocator(std::string const& options = {}) { check(trtalloc_create(options.c_str(), &allocator_)); }

    // Uses external memory, which must stay valid until the last block is freed.
    Allocator(void* base, std::uint64_t bytes, std::string const& options = {}) {
        check(trtalloc_create_from(base, bytes, options.c_str(), &allocator_));
    }

    Allocator(Allocator&& other) noexcept : allocator_(std::exchange(other.allocator_, nullptr)) {}

    Allocator& operator=(Allocator&& other) noexcept {
        if (this != &other) {
            trtalloc_destroy(allocator_);
            allocator_ = std::exchange(other.allocator_, nullptr);
        }
        return *this;
    }

    Allocator(Allocator const&) = delete;
    Allocator& operator=(Allocator const&) = delete;

    ~Allocator() { trtalloc_destroy(allocator_); }

    // For the C functions. Null after the object was moved from.
    trtalloc_allocator* get() const noexcept { return allocator_; }

    void* allocate(std::uint64_t size, std::uint64_t alignment = 0, std::uint32_t flags = 0) noexcept {
        return trtalloc_allocate(allocator_, size, alignment, flags);
    }

    template <std::uintptr_t Default = detail::default_stream>
    void* allocate_async(std::uint64_t size, void* stream, std::uint64_t alignment = 0,
                         std::uint32_t flags = 0) noexcept {
        return trtalloc_allocate_async(allocator_, size, alignment, flags, detail::stream_handle<Default>(stream));
    }

    void* reallocate(void* address, std::uint64_t new_size, std::uint64_t alignment = 0) noexcept {
        return trtalloc_reallocate(allocator_, address, alignment, new_size);
    }

    bool deallocate(void* memory) noexcept { return trtalloc_deallocate(allocator_, memory); }

    template <std::uintptr_t Default = detail::default_stream>
    bool deallocate_async(void* memory, void* stream) noexcept {
        return trtalloc_deallocate_async(allocator_, memory, detail::stream_handle<Default>(stream));
    }

    // Allocates on `device`, which must be the stream's device.
    template <std::uintptr_t Default = detail::default_stream>
    void* allocate_on(std::int32_t device, std::uint64_t size, void* stream, std::uint64_t alignment = 0,
                      std::uint32_t flags = 0) noexcept {
        return trtalloc_allocate_on(allocator_, device, size, alignment, flags, detail::stream_handle<Default>(stream));
    }

    // Allocates a block that the returned object owns. Throws Error if the request cannot be satisfied.
    Block block(std::uint64_t size, std::uint64_t alignment = 0) {
        return Block(allocator_, allocate(size, alignment), size, nullptr, false);
    }

    // The same, for work queued on `stream` from now on. The block is freed on that stream, which must outlive the object.
    template <std::uintptr_t Default = detail::default_stream>
    Block block_async(std::uint64_t size, void* stream, std::uint64_t alignment = 0) {
        void* const handle = detail::stream_handle<Default>(stream);
        return Block(allocator_, trtalloc_allocate_async(allocator_, size, alignment, 0, handle), size, handle, true);
    }

    template <std::uintptr_t Default = detail::default_stream>
    void record_stream(void* memory, void* stream) {
        check(trtalloc_record_stream(allocator_, memory, detail::stream_handle<Default>(stream)));
    }

    template <std::uintptr_t Default = detail::default_stream>
    void stream_release(void* stream) {
        check(trtalloc_stream_release(allocator_, detail::stream_handle<Default>(stream)));
    }

    // Here and below, `device` -1 is the current one. Always inlined: later versions of trtalloc.h have more fields, and
    // libraries of one process that are compiled with different versions must not share this function.
    [[gnu::always_inline]] trtalloc_stats stats(std::int32_t device = -1) const {
        trtalloc_stats out;
        check(trtalloc_stats_get(allocator_, device, &out, sizeof out));
        return out;
    }

    void reset_peaks(std::int32_t device = -1) { check(trtalloc_stats_reset_peaks(allocator_, device)); }

    // Returns the number of bytes returned to the driver.
    std::uint64_t trim(std::uint64_t keep_bytes = 0, std::int32_t device = -1) {
        std::uint64_t released = 0;
        check(trtalloc_trim(allocator_, device, keep_bytes, &released));
        return released;
    }

    void set_limit(std::uint64_t bytes, std::int32_t device = -1) {
        check(trtalloc_set_limit(allocator_, device, bytes));
    }

    // As trtalloc_history, trtalloc_snapshot and trtalloc_on_oom.
    void history(std::string const& options) { check(trtalloc_history(allocator_, options.c_str())); }
    void snapshot(std::string const& path) const { check(trtalloc_snapshot(allocator_, path.c_str())); }
    void on_oom(trtalloc_oom_handler handler, void* context) { check(trtalloc_on_oom(allocator_, handler, context)); }

private:
    trtalloc_allocator* allocator_ = nullptr;
};

}  // namespace trtalloc

#endif
