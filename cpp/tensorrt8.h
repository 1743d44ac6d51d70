// nvinfer1::IGpuAllocator as TensorRT 8 and 9 have it, in our own words: name, order and signatures of the virtual functions
// are the ABI. Never include an application's NvInferRuntime.h beside it.
//
// 8.0 and 8.1 end with slot 4, later ones have slot 5 too. The first five are the same, so one table serves both: who does
// not know of the last never calls it. TensorRT 10 has another class of this name, in namespace v_1_0 (tensorrt10.h).
#pragma once

#include <cstdint>

namespace nvinfer1 {

class IGpuAllocator {
public:
    // Slot 0. Sizes and alignments are bytes; a flag is a bit, kRESIZABLE the lowest.
    virtual void* allocate(std::uint64_t size, std::uint64_t alignment, std::uint32_t flags) noexcept = 0;
    // Slot 1.
    virtual void free(void* memory) noexcept = 0;
    // Slots 2 and 3: the complete and the deleting destructor.
    virtual ~IGpuAllocator() = default;
    // Slot 4.
    virtual void* reallocate(void* address, std::uint64_t alignment, std::uint64_t newSize) noexcept = 0;
    // Slot 5, from 8.2: `free` that says whether it could.
    virtual bool deallocate(void* memory) noexcept = 0;

protected:
    IGpuAllocator() = default;
};

}  // namespace nvinfer1
