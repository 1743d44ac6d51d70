// The headers' ways to allocate on the default stream, as a source file of the program calls them.
#pragma once

#include <trtalloc/trtalloc.hpp>

struct Doors {
    // Allocates a block and frees it, with pending work between on the default stream of this source file.
    void* (*use)(trtalloc::Allocator& memory, void (*work)());
    // Allocates a block.
    void* (*get)(trtalloc::Allocator& memory);
};

// In an order of their own: rmm.hpp, `allocate_async`, `allocate_on`, `block_async`.
constexpr int doors = 4;
extern Doors const per_thread_doors[doors];
extern Doors const legacy_doors[doors];
