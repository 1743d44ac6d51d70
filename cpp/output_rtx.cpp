// The output allocator for TensorRT-RTX.
#include "output_rtx.h"

#include "output_adapter.h"

namespace trtalloc {
namespace {

class AdapterRtx final : public nvinfer1::v_1_0::IOutputAllocator {
public:
    explicit AdapterRtx(Output const& output) noexcept : output_(output) {}

    nvinfer1::APILanguage getAPILanguage() const noexcept override { return nvinfer1::APILanguage::kCPP; }

    nvinfer1::InterfaceInfo getInterfaceInfo() const noexcept override { return {"IOutputAllocator", 1, 0}; }

    void* reallocateOutputAsync(char const* tensorName, void*, std::uint64_t size, std::uint64_t alignment,
                                CUstream_st* stream) override {
        return pointer(output_.output_reallocate_async(tensorName, size, alignment, number(stream)));
    }

    void notifyShape(char const* tensorName, nvinfer1::Dims64 const& dims) noexcept override {
        notify(output_, tensorName, dims);
    }

    static void operator delete(void* memory) noexcept { Slot<AdapterRtx, Output>::revive(memory); }

private:
    Output const& output_;
};

}  // namespace

std::size_t make_output_rtx(Output const& output) noexcept {
    return number(static_cast<nvinfer1::v_1_0::IOutputAllocator*>(Slot<AdapterRtx, Output>::make(output)));
}

}  // namespace trtalloc
