// What makes TensorRT's interfaces out of an allocator: a function for each generation of them.
#pragma once

#include "tensorrt10.h"
#include "tensorrt8.h"

namespace trtalloc {

// The Rust side: what every adapter forwards to.
struct Handle;

// The handle is kept and lives for ever, as does the adapter. Null where host memory is out.

// TensorRT 8 and 9.
nvinfer1::IGpuAllocator* make_tensorrt8(Handle const& handle) noexcept;

// TensorRT 10, 11 and RTX.
nvinfer1::v_1_0::IGpuAllocator* make_tensorrt10(Handle const& handle) noexcept;

}  // namespace trtalloc
