// The adapter for TensorRT 8 and 9.
#include "tensorrt8.h"

#include "slot.h"
#include "trtalloc/src/ffi/tensorrt/allocator_bridge.rs.h"

namespace trtalloc {
namespace {

// Target is the Rust side: ExportedAllocator, or NamedAllocator.
template <class Target>
class Adapter final : public nvinfer1::IGpuAllocator {
public:
    explicit Adapter(Target const& allocator) noexcept : allocator_(allocator) {}

    void* allocate(std::uint64_t size, std::uint64_t alignment, std::uint32_t flags) noexcept override {
        return pointer(allocator_.adapter_allocate(size, alignment, flags));
    }

    void free(void* memory) noexcept override { allocator_.adapter_deallocate(number(memory)); }

    void* reallocate(void* address, std::uint64_t alignment, std::uint64_t newSize) noexcept override {
        return pointer(allocator_.adapter_reallocate(number(address), alignment, newSize));
    }

    bool deallocate(void* memory) noexcept override { return allocator_.adapter_deallocate(number(memory)); }

    static void operator delete(void* memory) noexcept { Slot<Adapter, Target>::revive(memory); }

private:
    Target const& allocator_;
};

}  // namespace

nvinfer1::IGpuAllocator* make_tensorrt8(ExportedAllocator const& allocator) noexcept {
    return Slot<Adapter<ExportedAllocator>, ExportedAllocator>::make(allocator);
}

nvinfer1::IGpuAllocator* make_named_tensorrt8(NamedAllocator const& allocator) noexcept {
    return Slot<Adapter<NamedAllocator>, NamedAllocator>::make(allocator);
}

}  // namespace trtalloc
