// nvinfer1::IOutputAllocator of TensorRT 10 and 11, declared by this project (see tensorrt10.h). Do not include it
// together with NVIDIA's header or with output_rtx.h.
#pragma once

#include "tensorrt10.h"

namespace nvinfer1 {

// The extents of a tensor. TensorRT's name for it is Dims.
class Dims64 {
public:
    std::int32_t nbDims;
    std::int64_t d[8];
};

namespace v_1_0 {

// Slots 4 to 6. Sizes and alignments are bytes.
class IOutputAllocator : public IVersionedInterface {
public:
    virtual void* reallocateOutput(char const* tensorName, void* currentMemory, std::uint64_t size,
                                   std::uint64_t alignment) noexcept = 0;
    virtual void* reallocateOutputAsync(char const* tensorName, void* currentMemory, std::uint64_t size,
                                        std::uint64_t alignment, CUstream_st* stream) = 0;
    virtual void notifyShape(char const* tensorName, Dims64 const& dims) noexcept = 0;
    ~IOutputAllocator() override = default;

protected:
    IOutputAllocator() = default;
};

}  // namespace v_1_0
}  // namespace nvinfer1
