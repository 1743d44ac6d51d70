// trtalloc for TensorRT in C++17. Needs the application's own NvInferRuntime.h and what that needs.
#ifndef TRTALLOC_TENSORRT_HPP
#define TRTALLOC_TENSORRT_HPP

#include <NvInferRuntime.h>
#include <trtalloc/trtalloc.hpp>

#include <cstdint>

namespace trtalloc {

// The allocator as TensorRT takes it, for the version that the application is compiled with. It belongs to the allocator,
// is never to be deleted, and stays valid for ever. Throws Error where this trtalloc does not know that version.
inline nvinfer1::IGpuAllocator* tensorrt(trtalloc_allocator* allocator) {
    auto const version = static_cast<std::int32_t>(
#ifdef NV_TENSORRT_VERSION
        NV_TENSORRT_VERSION
#else
        NV_TENSORRT_MAJOR * 1000 + NV_TENSORRT_MINOR * 100 + NV_TENSORRT_PATCH
#endif
    );
    void* const adapter = trtalloc_tensorrt_allocator(allocator, version);
    if (adapter == nullptr) {
        throw Error(TRTALLOC_STATUS_UNSUPPORTED, trtalloc_last_error());
    }
    return static_cast<nvinfer1::IGpuAllocator*>(adapter);
}

inline nvinfer1::IGpuAllocator* tensorrt(Allocator const& allocator) { return tensorrt(allocator.get()); }

}  // namespace trtalloc

#endif
