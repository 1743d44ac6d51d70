// trtalloc for TensorRT in C++17: compiled in the application, with the application's own NvInferRuntime.h.
//
//     trtalloc::Allocator memory{"limit=4GiB"};
//     runtime->setGpuAllocator(trtalloc::tensorrt(memory));     // nvinfer1::IRuntime or nvinfer1::IBuilder
//
// One trtalloc library serves TensorRT 8 to 11 and TensorRT-RTX 1; a TensorRT whose interface is another does not compile.
#ifndef TRTALLOC_TENSORRT_HPP
#define TRTALLOC_TENSORRT_HPP

#include <NvInferRuntime.h>
#include <trtalloc/trtalloc.hpp>

#include <cstdint>
#include <type_traits>

namespace trtalloc {

// The TensorRT that the application is compiled with, as createInferRuntime is given it: 8601, 10701 (RTX), 110400.
constexpr std::int32_t tensorrt_version = static_cast<std::int32_t>(
#ifdef NV_TENSORRT_VERSION
    NV_TENSORRT_VERSION
#else
    NV_TENSORRT_MAJOR * 1000 + NV_TENSORRT_MINOR * 100 + NV_TENSORRT_PATCH
#endif
);

static_assert((tensorrt_version >= 8000 && tensorrt_version < 20000) ||
                  (tensorrt_version >= 100000 && tensorrt_version < 120000),
              "this trtalloc does not know this TensorRT: it knows 8 to 11, and RTX 1");

#if NV_TENSORRT_MAJOR != 8 && NV_TENSORRT_MAJOR != 9
static_assert(std::is_same<nvinfer1::IGpuAllocator, nvinfer1::v_1_0::IGpuAllocator>::value,
              "this TensorRT has a newer IGpuAllocator than this trtalloc knows");
#endif
static_assert(sizeof(nvinfer1::IGpuAllocator) == sizeof(void*) && std::is_abstract<nvinfer1::IGpuAllocator>::value,
              "IGpuAllocator of this TensorRT is not the interface that trtalloc knows");

// The allocator as TensorRT takes it: for IRuntime::setGpuAllocator, IBuilder::setGpuAllocator and
// IExecutionContext::setTemporaryStorageAllocator. The same pointer each time. It belongs to the allocator, is never to be
// deleted, and stays valid for ever. The allocator itself must outlive every engine and context that uses it. Throws Error
// where the library that is loaded does not know this TensorRT, or the argument is null.
inline nvinfer1::IGpuAllocator* tensorrt(trtalloc_allocator* allocator) {
    void* const adapter = trtalloc_tensorrt_allocator(allocator, tensorrt_version);
    if (adapter == nullptr) {
        throw Error(allocator == nullptr ? TRTALLOC_STATUS_INVALID_ARGUMENT : TRTALLOC_STATUS_UNSUPPORTED,
                    trtalloc_last_error());
    }
    return static_cast<nvinfer1::IGpuAllocator*>(adapter);
}

inline nvinfer1::IGpuAllocator* tensorrt(Allocator const& allocator) { return tensorrt(allocator.get()); }

// Whether a createInfer* function gave an object. Where there is no driver, some TensorRTs give not null but an address
// within the first page; to use or to delete it ends the process.
template <class T>
bool created(T const* object) noexcept {
    return reinterpret_cast<std::uintptr_t>(object) >= 4096;
}

}  // namespace trtalloc

#endif
