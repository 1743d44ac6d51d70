// The adapter for TensorRT 10, 11 and RTX.
#include "tensorrt10.h"

#include <cstddef>
#include <new>

#include "adapter.h"
#include "trtalloc/src/bridge.rs.h"

namespace trtalloc {
namespace {

std::size_t number(void const* pointer) noexcept { return reinterpret_cast<std::size_t>(pointer); }

void* pointer(std::size_t number) noexcept { return reinterpret_cast<void*>(number); }

class Adapter final : public nvinfer1::v_1_0::IGpuAsyncAllocator {
public:
    explicit Adapter(Handle const& handle) noexcept : handle_(handle) {}

    nvinfer1::APILanguage getAPILanguage() const noexcept override { return nvinfer1::APILanguage::kCPP; }

    nvinfer1::InterfaceInfo getInterfaceInfo() const noexcept override { return {"IGpuAllocator", 1, 0}; }

    void* allocate(std::uint64_t size, std::uint64_t alignment, std::uint32_t flags) noexcept override {
        return pointer(handle_.adapter_allocate(size, alignment, flags));
    }

    void* reallocate(void* address, std::uint64_t alignment, std::uint64_t newSize) noexcept override {
        return pointer(handle_.adapter_reallocate(number(address), alignment, newSize));
    }

    bool deallocate(void* memory) noexcept override { return handle_.adapter_deallocate(number(memory)); }

    void* allocateAsync(std::uint64_t size, std::uint64_t alignment, std::uint32_t flags,
                        CUstream_st* stream) noexcept override {
        return pointer(handle_.adapter_allocate_async(size, alignment, flags, number(stream)));
    }

    bool deallocateAsync(void* memory, CUstream_st* stream) noexcept override {
        return handle_.adapter_deallocate_async(number(memory), number(stream));
    }

    // The adapter belongs to its allocator. An application that deletes it all the same gets it back as it was: later
    // calls through the pointer find a live object.
    static void operator delete(void* memory) noexcept;

private:
    Handle const& handle_;
};

// The handle stands beside the object, for it is needed after the object's destructor has run.
struct Slot {
    Handle const* handle;
    alignas(Adapter) unsigned char object[sizeof(Adapter)];
};

void Adapter::operator delete(void* memory) noexcept {
    auto* slot = reinterpret_cast<Slot*>(static_cast<unsigned char*>(memory) - offsetof(Slot, object));
    ::new (memory) Adapter(*slot->handle);
}

}  // namespace

nvinfer1::v_1_0::IGpuAllocator* make_tensorrt10(Handle const& handle) noexcept {
    auto* slot = new (std::nothrow) Slot{&handle, {}};
    return slot == nullptr ? nullptr : ::new (static_cast<void*>(slot->object)) Adapter(handle);
}

}  // namespace trtalloc
