// Code that the output allocators share.
#pragma once

#include <cstddef>
#include <cstdint>

#include "output.h"
#include "slot.h"
#include "trtalloc/src/ffi/tensorrt/output_bridge.rs.h"

namespace trtalloc {

template <class Dims>
void notify(Output const& output, char const* name, Dims const& dims) noexcept {
    std::int64_t extents[8];
    std::size_t count = 0;
    for (; count < 8 && static_cast<std::int64_t>(count) < dims.nbDims; ++count) {
        extents[count] = dims.d[count];
    }
    output.output_shape(name, extents, count);
}

}  // namespace trtalloc
