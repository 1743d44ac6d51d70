// The part of TensorRT 8's and 9's NvInferRuntime.h that an allocator is about, in our own words, for a caller to be compiled
// against: NVIDIA's headers of those versions may not be copied. EIGHT_MAJOR, EIGHT_MINOR and EIGHT_PATCH say which version.
#ifndef NV_INFER_RUNTIME_H
#define NV_INFER_RUNTIME_H

#include <cstdint>

#define NV_TENSORRT_MAJOR EIGHT_MAJOR
#define NV_TENSORRT_MINOR EIGHT_MINOR
#define NV_TENSORRT_PATCH EIGHT_PATCH

namespace nvinfer1 {

// Not for the preprocessor to compare, as in some of those versions.
constexpr std::int32_t version_of_this_header =
    NV_TENSORRT_MAJOR * 1000 + NV_TENSORRT_MINOR * 100 + NV_TENSORRT_PATCH;
#define NV_TENSORRT_VERSION nvinfer1::version_of_this_header

enum class AllocatorFlag : std::int32_t { kRESIZABLE = 0 };
using AllocatorFlags = std::uint32_t;

class IGpuAllocator {
public:
    virtual void* allocate(std::uint64_t const size, std::uint64_t const alignment,
                           AllocatorFlags const flags) noexcept = 0;
    virtual void free(void* const memory) noexcept = 0;
    virtual ~IGpuAllocator() = default;
    IGpuAllocator() = default;
    virtual void* reallocate(void*, std::uint64_t, std::uint64_t) noexcept { return nullptr; }
#if EIGHT_MAJOR > 8 || EIGHT_MINOR >= 2
    virtual bool deallocate(void* const memory) noexcept {
        this->free(memory);
        return true;
    }
#endif
};

#if EIGHT_MAJOR > 8 || EIGHT_MINOR >= 5
class Dims32 {
public:
    std::int32_t nbDims;
    std::int32_t d[8];
};
using Dims = Dims32;

class IOutputAllocator {
public:
    virtual std::int32_t getInterfaceVersion() const noexcept { return 1; }
    virtual void* reallocateOutput(char const* tensorName, void* currentMemory, std::uint64_t size,
                                   std::uint64_t alignment) noexcept = 0;
    virtual void notifyShape(char const* tensorName, Dims const& dims) noexcept = 0;
#if EIGHT_MAJOR > 8 || EIGHT_MINOR >= 6
    virtual ~IOutputAllocator() = default;
#endif
};
#endif

}  // namespace nvinfer1

#endif
