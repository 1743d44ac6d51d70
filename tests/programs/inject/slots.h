// The slot of a virtual function in its class's table.
#pragma once

#include <NvInfer.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

template <class Function>
std::size_t slot_of(Function function) {
    // A pointer to a virtual member function contains its offset in the table: on x86-64 with the lowest bit set; on
    // aarch64 that bit is in the second word.
    std::uintptr_t words[2];
    static_assert(sizeof words == sizeof function, "not the Itanium ABI");
    std::memcpy(words, &function, sizeof words);
    return words[0] / sizeof(void*);
}
