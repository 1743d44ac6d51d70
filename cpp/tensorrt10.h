// nvinfer1::IGpuAllocator of TensorRT 10, TensorRT 11 and TensorRT-RTX, declared by this project. The names, the order
// of the virtual functions and their signatures are those of NvInferRuntime.h, because they are the ABI. Do not include
// it together with NVIDIA's header.
//
// The names are NVIDIA's, so that type information agrees with the application's and TensorRT's. Functions that have a
// body there are pure here: so no function of this library can replace NVIDIA's where both are linked into one program.
#pragma once

#include <cstdint>

struct CUstream_st;

namespace nvinfer1 {

class InterfaceInfo {
public:
    char const* kind;
    std::int32_t major;
    std::int32_t minor;
};

enum class APILanguage : std::int32_t { kCPP = 0, kPYTHON = 1 };

// Slots 0 to 3: getAPILanguage, getInterfaceInfo, the complete and the deleting destructor.
class IVersionedInterface {
public:
    virtual APILanguage getAPILanguage() const noexcept = 0;
    virtual InterfaceInfo getInterfaceInfo() const noexcept = 0;
    virtual ~IVersionedInterface() noexcept = default;

protected:
    IVersionedInterface() = default;
};

namespace v_1_0 {

// Slots 4 to 8. Sizes and alignments are bytes; a flag is a bit, kRESIZABLE the lowest.
class IGpuAllocator : public IVersionedInterface {
public:
    virtual void* allocate(std::uint64_t size, std::uint64_t alignment, std::uint32_t flags) noexcept = 0;
    ~IGpuAllocator() override = default;
    virtual void* reallocate(void* address, std::uint64_t alignment, std::uint64_t newSize) noexcept = 0;
    virtual bool deallocate(void* memory) noexcept = 0;
    virtual void* allocateAsync(std::uint64_t size, std::uint64_t alignment, std::uint32_t flags,
                                CUstream_st* stream) noexcept = 0;
    virtual bool deallocateAsync(void* memory, CUstream_st* stream) noexcept = 0;

protected:
    IGpuAllocator() = default;
};

// The same slots. A class that derives from it declares that its allocations are ordered by streams.
class IGpuAsyncAllocator : public IGpuAllocator {
public:
    ~IGpuAsyncAllocator() override = default;

protected:
    IGpuAsyncAllocator() = default;
};

}  // namespace v_1_0
}  // namespace nvinfer1
