// nvinfer1::IGpuAllocator of TensorRT 8 and 9, declared by this project: name, order and signatures of the virtual
// functions are the ABI. Do not include it together with an application's NvInferRuntime.h.
//
// 8.0 and 8.1 end with slot 4; later versions add slot 5. The first five are the same, so one table serves both: a
// caller that does not know the last slot never calls it. TensorRT 10 has another class of this name, in namespace
// v_1_0 (tensorrt10.h).
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
    // Slot 5, since 8.2: `free` that returns whether it succeeded.
    virtual bool deallocate(void* memory) noexcept = 0;

protected:
    IGpuAllocator() = default;
};

}  // namespace nvinfer1
