// trtalloc as a memory resource of CUDA's core libraries (cuda::mr::resource), for C++17 and the application's own CCCL, 3.1 or newer,
// which CUDA 13.1 has, and RMM 25.12. It needs only trtalloc.hpp and <cuda/memory_resource>. CCCL before 3.2 requires
// LIBCUDACXX_ENABLE_EXPERIMENTAL_MEMORY_RESOURCE.
//
//     trtalloc::MemoryResource pool;                                       // the process's own allocator
//     cuda::mr::any_resource<cuda::mr::device_accessible> any{pool};       // and whatever else takes a resource, by value
//     rmm::mr::set_current_device_resource(pool);                          // RMM 26.06 and newer
//
// A null stream is the default stream of the source file that uses MemoryResource, as trtalloc.hpp says.
#ifndef TRTALLOC_MR_HPP
#define TRTALLOC_MR_HPP

#include <trtalloc/trtalloc.hpp>

#include <cuda/memory_resource>
#include <cuda/version>

#include <cstddef>
#include <new>
#include <string>

#if CCCL_VERSION < 3001000
#error "trtalloc/mr.hpp needs CCCL 3.1 or newer: rmm.hpp serves an older RMM"
#endif
#if CCCL_VERSION >= 3002000
#include <cuda/stream>
#else
#include <cuda/stream_ref>
#endif

namespace trtalloc {

// Memory has run out: what() gives the reason as text.
class OutOfMemory : public std::bad_alloc {
public:
    explicit OutOfMemory(char const* what) : error_(TRTALLOC_STATUS_OUT_OF_MEMORY, what) {}
    char const* what() const noexcept override { return error_.what(); }

private:
    // Its text is shared by copies, which therefore do not throw.
    Error error_;
};

// What null means depends on how a source file is compiled, so the class has two names for the linker, as in rmm.hpp.
#if defined(CUDA_API_PER_THREAD_DEFAULT_STREAM) || defined(__CUDA_API_PER_THREAD_DEFAULT_STREAM) || \
    defined(__CUDART_API_PER_THREAD_DEFAULT_STREAM)
inline namespace mr_per_thread_default_stream {
#else
inline namespace mr_legacy_default_stream {
#endif

// A resource that uses an allocator, which must exist as long as the memory and must be open at each allocation. It can be copied.
// Its copies and all resources of one allocator are equal: each can free what another one allocated. Functions that allocate throw
// OutOfMemory, which is a std::bad_alloc, if memory has run out, and Error for any other reason. Those that free never throw; a
// refused call is logged. Memory has the alignment that the caller names, and at least 512 bytes. A request for 0 bytes gives null.
class MemoryResource {
public:
    // The process's own allocator.
    MemoryResource() noexcept : allocator_(trtalloc_default()) {}
    explicit MemoryResource(trtalloc_allocator* allocator) noexcept : allocator_(allocator) {}
    explicit MemoryResource(Allocator const& allocator) noexcept : allocator_(allocator.get()) {}

    // Memory for work that is queued on `stream` from now on.
    [[nodiscard]] void* allocate(cuda::stream_ref stream, std::size_t bytes,
                                 std::size_t alignment = alignof(std::max_align_t)) {
        return bytes == 0 ? nullptr : checked(trtalloc_allocate_async(allocator_, bytes, alignment, 0, handle(stream)));
    }

    // Work queued so far on `stream` may still use the memory.
    void deallocate(cuda::stream_ref stream, void* memory, std::size_t,
                    std::size_t = alignof(std::max_align_t)) noexcept {
        trtalloc_deallocate_async(allocator_, memory, handle(stream));
    }

    // Memory for use on any stream, at once.
    [[nodiscard]] void* allocate_sync(std::size_t bytes, std::size_t alignment = alignof(std::max_align_t)) {
        return bytes == 0 ? nullptr : checked(trtalloc_allocate(allocator_, bytes, alignment, 0));
    }

    // Work queued so far on any stream may still use the memory.
    void deallocate_sync(void* memory, std::size_t, std::size_t = alignof(std::max_align_t)) noexcept {
        trtalloc_deallocate(allocator_, memory);
    }

    trtalloc_allocator* get() const noexcept { return allocator_; }

    friend bool operator==(MemoryResource const& one, MemoryResource const& other) noexcept {
        return one.allocator_ == other.allocator_;
    }
    friend bool operator!=(MemoryResource const& one, MemoryResource const& other) noexcept { return !(one == other); }

    friend constexpr void get_property(MemoryResource const&, cuda::mr::device_accessible) noexcept {}
#if CCCL_VERSION >= 3002000
    using default_queries = cuda::mr::properties_list<cuda::mr::device_accessible>;
#endif

private:
    static void* handle(cuda::stream_ref stream) noexcept {
        return detail::stream_handle<detail::default_stream>(stream.get());
    }

    static void* checked(void* memory) {
        if (memory != nullptr) {
            return memory;
        }
        if (trtalloc_last_status() == TRTALLOC_STATUS_OUT_OF_MEMORY) {
            throw OutOfMemory(trtalloc_last_error());
        }
        throw Error::last();
    }

    trtalloc_allocator* allocator_;
};

static_assert(cuda::mr::resource_with<MemoryResource, cuda::mr::device_accessible>,
              "MemoryResource is a cuda::mr::resource");

}  // inline namespace

}  // namespace trtalloc

#endif  // TRTALLOC_MR_HPP
