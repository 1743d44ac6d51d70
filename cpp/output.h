// What makes TensorRT's output allocators: a function for each of their shapes.
#pragma once

#include <cstddef>

namespace trtalloc {

// The Rust side: what every adapter forwards to.
struct Output;

// Each gives an nvinfer1::IOutputAllocator*, as a number: the class has the same qualified name in two of the shapes. The output
// is kept and lives for ever, as does the adapter. 0 where host memory is out.

// TensorRT 8.5 to 9.
std::size_t make_output8(Output const& output) noexcept;

// TensorRT 10 and 11.
std::size_t make_output10(Output const& output) noexcept;

// TensorRT-RTX.
std::size_t make_output_rtx(Output const& output) noexcept;

}  // namespace trtalloc
