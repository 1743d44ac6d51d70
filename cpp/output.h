// Functions that make TensorRT's output allocators, one for each ABI generation.
#pragma once

#include <cstddef>

namespace trtalloc {

// The Rust side, to which every adapter forwards.
struct Output;

// Each returns an nvinfer1::IOutputAllocator* as a number, because the class has the same qualified name in two
// generations. The adapter refers to the output, which must never be freed, and is never freed itself. Returns 0 if host
// memory is exhausted.

// TensorRT 8.5 to 9.
std::size_t make_output8(Output const& output) noexcept;

// TensorRT 10 and 11.
std::size_t make_output10(Output const& output) noexcept;

// TensorRT-RTX.
std::size_t make_output_rtx(Output const& output) noexcept;

}  // namespace trtalloc
