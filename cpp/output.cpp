// The output allocators for TensorRT 8 and 9, and for 10 and 11.
#include "output10.h"
#include "output8.h"
#include "output_adapter.h"

namespace trtalloc {
namespace {

class Adapter10 final : public nvinfer1::v_1_0::IOutputAllocator {
public:
    explicit Adapter10(Output const& output) noexcept : output_(output) {}

    nvinfer1::APILanguage getAPILanguage() const noexcept override { return nvinfer1::APILanguage::kCPP; }

    nvinfer1::InterfaceInfo getInterfaceInfo() const noexcept override { return {"IOutputAllocator", 1, 0}; }

    void* reallocateOutput(char const* tensorName, void*, std::uint64_t size,
                           std::uint64_t alignment) noexcept override {
        return pointer(output_.output_reallocate(tensorName, size, alignment));
    }

    void* reallocateOutputAsync(char const* tensorName, void*, std::uint64_t size, std::uint64_t alignment,
                                CUstream_st* stream) override {
        return pointer(output_.output_reallocate_async(tensorName, size, alignment, number(stream)));
    }

    void notifyShape(char const* tensorName, nvinfer1::Dims64 const& dims) noexcept override {
        notify(output_, tensorName, dims);
    }

    static void operator delete(void* memory) noexcept { Slot<Adapter10, Output>::revive(memory); }

private:
    Output const& output_;
};

class Adapter8 final : public nvinfer1::IOutputAllocator {
public:
    explicit Adapter8(Output const& output) noexcept : output_(output) {}

    std::int32_t getInterfaceVersion() const noexcept override { return 1; }

    void* reallocateOutput(char const* tensorName, void*, std::uint64_t size,
                           std::uint64_t alignment) noexcept override {
        return pointer(output_.output_reallocate(tensorName, size, alignment));
    }

    void notifyShape(char const* tensorName, nvinfer1::Dims32 const& dims) noexcept override {
        notify(output_, tensorName, dims);
    }

    static void operator delete(void* memory) noexcept { Slot<Adapter8, Output>::revive(memory); }

private:
    Output const& output_;
};

}  // namespace

std::size_t make_output10(Output const& output) noexcept {
    return number(static_cast<nvinfer1::v_1_0::IOutputAllocator*>(Slot<Adapter10, Output>::make(output)));
}

std::size_t make_output8(Output const& output) noexcept {
    return number(static_cast<nvinfer1::IOutputAllocator*>(Slot<Adapter8, Output>::make(output)));
}

}  // namespace trtalloc
