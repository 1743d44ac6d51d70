// trtalloc as a memory resource of RMM, for the application's own RMM, 24.12 or newer, and the C++ that this RMM needs: C++17, and
// C++20 from 26.10 on. It needs only trtalloc.h and rmm/mr/callback_memory_resource.hpp. mr.hpp has a resource that needs no RMM.
//
//     rmm::mr::callback_memory_resource resource = trtalloc::rmm_resource();
//     rmm::mr::set_current_device_resource(resource);                      // before RMM 26.06: &resource
//
// RMM's default stream has the handle 0. In a program that is compiled with per-thread default streams
// (CUDA_API_PER_THREAD_DEFAULT_STREAM, which nvcc's --default-stream per-thread defines), it is the calling thread's stream, as it
// is for the program's own calls of CUDA. Otherwise it is the legacy default stream.
#ifndef TRTALLOC_RMM_HPP
#define TRTALLOC_RMM_HPP

#include <trtalloc/trtalloc.h>

#if __has_include(<rmm/mr/callback_memory_resource.hpp>)
#include <rmm/mr/callback_memory_resource.hpp>
#else
#include <rmm/mr/device/callback_memory_resource.hpp>
#endif

#if __has_include(<rmm/error.hpp>)
#include <rmm/error.hpp>
#else
#include <rmm/detail/error.hpp>
#endif

#include <cstddef>
#include <cstdint>
#include <functional>

namespace trtalloc {

// What 0 means depends on how a source file is compiled, and one program may have files of both kinds. Functions of one name and
// two meanings would be one function for the linker. So those below have two names.
#if defined(CUDA_API_PER_THREAD_DEFAULT_STREAM) || defined(__CUDA_API_PER_THREAD_DEFAULT_STREAM) || \
    defined(__CUDART_API_PER_THREAD_DEFAULT_STREAM)
inline namespace rmm_per_thread_default_stream {

// cudaStreamPerThread.
constexpr std::uintptr_t rmm_default_stream = 2;
#else
inline namespace rmm_legacy_default_stream {

// As trtalloc.h has it.
constexpr std::uintptr_t rmm_default_stream = 0;
#endif

namespace rmm_detail {

template <class Stream>
Stream stream_of(std::function<void*(std::size_t, Stream, void*)> const&);

// cuda_stream_view has value() in every RMM. cuda::stream_ref has get().
template <class Stream>
auto handle(Stream stream, int) noexcept -> decltype(stream.value()) {
    return stream.value();
}
template <class Stream>
auto handle(Stream stream, long) noexcept -> decltype(stream.get()) {
    return stream.get();
}

}  // namespace rmm_detail

// What RMM's callbacks get: rmm::cuda_stream_view, and cuda::stream_ref from 26.10 on.
using rmm_stream_ref = decltype(rmm_detail::stream_of(rmm::mr::allocate_callback_t{}));

// The handle that names the stream in calls of the library. `Stream` is rmm::cuda_stream_view or cuda::stream_ref.
template <class Stream>
void* rmm_stream(Stream stream) noexcept {
    void* const handle = rmm_detail::handle(stream, 0);
    return handle != nullptr ? handle : reinterpret_cast<void*>(rmm_default_stream);
}

// Allocates a block for `stream`, aligned to 512 bytes. Throws rmm::out_of_memory if memory has run out, and rmm::bad_alloc for
// any other reason. `allocator` is a trtalloc_allocator*. For a request of 0 bytes, which RMM may make, it returns null.
inline void* rmm_allocate(std::size_t bytes, rmm_stream_ref stream, void* allocator) {
    if (bytes == 0) {
        return nullptr;
    }
    auto* const pool = static_cast<trtalloc_allocator*>(allocator);
    if (void* const memory = trtalloc_allocate_async(pool, bytes, 0, 0, rmm_stream(stream))) {
        return memory;
    }
    if (trtalloc_last_status() == TRTALLOC_STATUS_OUT_OF_MEMORY) {
        throw rmm::out_of_memory(trtalloc_last_error());
    }
    throw rmm::bad_alloc(trtalloc_last_error());
}

// Frees the block in the order of `stream`. Never throws; a refused call is logged.
inline void rmm_deallocate(void* memory, std::size_t, rmm_stream_ref stream, void* allocator) noexcept {
    trtalloc_deallocate_async(static_cast<trtalloc_allocator*>(allocator), memory, rmm_stream(stream));
}

// A resource that uses `allocator`, which must stay open while the resource is in use. NULL: the process's own allocator.
inline rmm::mr::callback_memory_resource rmm_resource(trtalloc_allocator* allocator = nullptr) {
    if (allocator == nullptr) {
        allocator = trtalloc_default();
    }
    return rmm::mr::callback_memory_resource(rmm_allocate, rmm_deallocate, allocator, allocator);
}

} // inline namespace

} // namespace trtalloc

#endif // TRTALLOC_RMM_HPP
