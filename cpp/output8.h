// nvinfer1::IOutputAllocator of TensorRT 8.5 to 9, declared by this project (see tensorrt8.h). Do not include it
// together with NVIDIA's header.
//
// 8.5 ends with slot 2. 8.6 added the destructor after it, so one table serves both.
#pragma once

#include <cstdint>

namespace nvinfer1 {

// The extents of a tensor. TensorRT's name for it is Dims.
class Dims32 {
public:
    std::int32_t nbDims;
    std::int32_t d[8];
};

class IOutputAllocator {
public:
    // Slot 0.
    virtual std::int32_t getInterfaceVersion() const noexcept = 0;
    // Slot 1. Sizes and alignments are bytes.
    virtual void* reallocateOutput(char const* tensorName, void* currentMemory, std::uint64_t size,
                                   std::uint64_t alignment) noexcept = 0;
    // Slot 2.
    virtual void notifyShape(char const* tensorName, Dims32 const& dims) noexcept = 0;
    // Slots 3 and 4.
    virtual ~IOutputAllocator() = default;

protected:
    IOutputAllocator() = default;
};

}  // namespace nvinfer1
