// Functions that make TensorRT's allocators out of an exported allocator, or one under a name, for each ABI generation.
#pragma once

#include "tensorrt10.h"
#include "tensorrt8.h"

namespace trtalloc {

// The Rust side, to which every adapter forwards. Blocks of a NamedAllocator count for its name.
struct ExportedAllocator;
struct NamedAllocator;

// The adapter refers to the allocator, which must never be freed, and is never freed itself. Returns null if host memory is
// exhausted.

// TensorRT 8 and 9.
nvinfer1::IGpuAllocator* make_tensorrt8(ExportedAllocator const& allocator) noexcept;
nvinfer1::IGpuAllocator* make_named_tensorrt8(NamedAllocator const& allocator) noexcept;

// TensorRT 10, 11 and RTX.
nvinfer1::v_1_0::IGpuAllocator* make_tensorrt10(ExportedAllocator const& allocator) noexcept;
nvinfer1::v_1_0::IGpuAllocator* make_named_tensorrt10(NamedAllocator const& allocator) noexcept;

}  // namespace trtalloc
