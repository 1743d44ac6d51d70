// trtalloc as a memory resource of RMM, for C++17 and the application's own RMM (tried with 25.12). It needs only trtalloc.h
// and rmm/mr/callback_memory_resource.hpp.
//
//     rmm::mr::callback_memory_resource resource = trtalloc::rmm_resource();
//     rmm::mr::set_current_device_resource(&resource);
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
#include <rmm/cuda_stream_view.hpp>

#if __has_include(<rmm/error.hpp>)
#include <rmm/error.hpp>
#else
#include <rmm/detail/error.hpp>
#endif

#include <cstddef>
#include <cstdint>

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

// The handle that names the stream in calls of the library.
inline void* rmm_stream(rmm::cuda_stream_view stream) noexcept {
    void* const handle = stream.value();
    return handle != nullptr ? handle : reinterpret_cast<void*>(rmm_default_stream);
}

// Allocates a block for `stream`, aligned to 512 bytes. Throws rmm::out_of_memory if memory has run out, and rmm::bad_alloc for
// any other reason. `allocator` is a trtalloc_allocator*. For a request of 0 bytes, which RMM may make, it returns null.
inline void* rmm_allocate(std::size_t bytes, rmm::cuda_stream_view stream, void* allocator) {
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
inline void rmm_deallocate(void* memory, std::size_t, rmm::cuda_stream_view stream, void* allocator) noexcept {
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
