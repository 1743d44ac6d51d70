#include "client.h"

namespace trtalloc {

// In a separate file the compiler does not know which class the pointer refers to, so the calls stay virtual.

std::size_t client_allocate(Base* allocator, std::uint64_t size, std::uint64_t alignment,
                            std::uint32_t flags) noexcept {
    return reinterpret_cast<std::size_t>(allocator->allocate(size, alignment, flags));
}

std::size_t client_allocate_async(Base* allocator, std::uint64_t size, std::uint64_t alignment, std::uint32_t flags,
                                  std::size_t stream) noexcept {
    return reinterpret_cast<std::size_t>(
        allocator->allocateAsync(size, alignment, flags, reinterpret_cast<CUstream_st*>(stream)));
}

std::size_t client_reallocate(Base* allocator, std::size_t address, std::uint64_t alignment,
                              std::uint64_t new_size) noexcept {
    return reinterpret_cast<std::size_t>(
        allocator->reallocate(reinterpret_cast<void*>(address), alignment, new_size));
}

bool client_deallocate(Base* allocator, std::size_t memory) noexcept {
    return allocator->deallocate(reinterpret_cast<void*>(memory));
}

bool client_deallocate_async(Base* allocator, std::size_t memory, std::size_t stream) noexcept {
    return allocator->deallocateAsync(reinterpret_cast<void*>(memory), reinterpret_cast<CUstream_st*>(stream));
}

}  // namespace trtalloc
