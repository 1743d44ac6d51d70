// Code that the output allocators share.
#pragma once

#include <cstdint>
#include <cstring>

#include "output.h"
#include "slot.h"
#include "trtalloc/src/ffi/tensorrt/output_bridge.rs.h"

namespace trtalloc {

inline rust::Slice<std::uint8_t const> text(char const* name) noexcept {
    return {reinterpret_cast<std::uint8_t const*>(name), name == nullptr ? 0 : std::strlen(name)};
}

template <class Dims>
void notify(Output const& output, char const* name, Dims const& dims) noexcept {
    std::int64_t extents[8];
    std::size_t count = 0;
    for (; count < 8 && static_cast<std::int64_t>(count) < dims.nbDims; ++count) {
        extents[count] = dims.d[count];
    }
    output.output_shape(text(name), {extents, count});
}

}  // namespace trtalloc
