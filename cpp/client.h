// A caller of nvinfer1::IGpuAllocator, like TensorRT: each function makes one virtual call.
#pragma once

#include <cstddef>
#include <cstdint>

#include "tensorrt10.h"

namespace trtalloc {

using Base = nvinfer1::v_1_0::IGpuAllocator;

std::size_t client_allocate(Base* allocator, std::uint64_t size, std::uint64_t alignment, std::uint32_t flags) noexcept;
std::size_t client_allocate_async(Base* allocator, std::uint64_t size, std::uint64_t alignment, std::uint32_t flags,
                                  std::size_t stream) noexcept;
std::size_t client_reallocate(Base* allocator, std::size_t address, std::uint64_t alignment,
                              std::uint64_t new_size) noexcept;
bool client_deallocate(Base* allocator, std::size_t memory) noexcept;
bool client_deallocate_async(Base* allocator, std::size_t memory, std::size_t stream) noexcept;

}  // namespace trtalloc
