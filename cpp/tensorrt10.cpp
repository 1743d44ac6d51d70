// The adapter for TensorRT 10, 11 and RTX.
#include "tensorrt10.h"

#include "slot.h"
#include "trtalloc/src/ffi/tensorrt/allocator_bridge.rs.h"

#if defined(__GLIBCXX__) && !defined(TRTALLOC_ALONE)
// cxx's own object needs this symbol of the C++ runtime, and comes after the runtime where a Rust program is linked.
// GNU ld does not search the runtime again, so this file requests the symbol. (lld does search again.)
extern "C" char const _ZNSt8ios_base4InitC1Ev;
[[gnu::used]] static char const* const ask_for_streams = &_ZNSt8ios_base4InitC1Ev;
#endif

namespace trtalloc {
namespace {

// Target is the Rust side: ExportedAllocator, or NamedAllocator.
template <class Target>
class Adapter final : public nvinfer1::v_1_0::IGpuAsyncAllocator {
public:
    explicit Adapter(Target const& allocator) noexcept : allocator_(allocator) {}

    nvinfer1::APILanguage getAPILanguage() const noexcept override { return nvinfer1::APILanguage::kCPP; }

    nvinfer1::InterfaceInfo getInterfaceInfo() const noexcept override { return {"IGpuAllocator", 1, 0}; }

    void* allocate(std::uint64_t size, std::uint64_t alignment, std::uint32_t flags) noexcept override {
        return pointer(allocator_.adapter_allocate(size, alignment, flags));
    }

    void* reallocate(void* address, std::uint64_t alignment, std::uint64_t newSize) noexcept override {
        return pointer(allocator_.adapter_reallocate(number(address), alignment, newSize));
    }

    bool deallocate(void* memory) noexcept override { return allocator_.adapter_deallocate(number(memory)); }

    void* allocateAsync(std::uint64_t size, std::uint64_t alignment, std::uint32_t flags,
                        CUstream_st* stream) noexcept override {
        return pointer(allocator_.adapter_allocate_async(size, alignment, flags, number(stream)));
    }

    bool deallocateAsync(void* memory, CUstream_st* stream) noexcept override {
        return allocator_.adapter_deallocate_async(number(memory), number(stream));
    }

    static void operator delete(void* memory) noexcept { Slot<Adapter, Target>::revive(memory); }

private:
    Target const& allocator_;
};

}  // namespace

nvinfer1::v_1_0::IGpuAllocator* make_tensorrt10(ExportedAllocator const& allocator) noexcept {
    return Slot<Adapter<ExportedAllocator>, ExportedAllocator>::make(allocator);
}

nvinfer1::v_1_0::IGpuAllocator* make_named_tensorrt10(NamedAllocator const& allocator) noexcept {
    return Slot<Adapter<NamedAllocator>, NamedAllocator>::make(allocator);
}

}  // namespace trtalloc
