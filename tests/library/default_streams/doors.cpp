// One source file, which the program has twice: compiled with per-thread default streams and without.
#include "doors.h"

#include <trtalloc/rmm.hpp>

namespace {

constexpr std::uint64_t bytes = 3 << 20;

void* rmm_get(trtalloc::Allocator& memory) { return trtalloc::rmm_resource(memory.get()).allocate({}, bytes); }
void* rmm_use(trtalloc::Allocator& memory, void (*work)()) {
    void* const block = rmm_get(memory);
    work();
    trtalloc::rmm_resource(memory.get()).deallocate({}, block, bytes);
    return block;
}

void* async_get(trtalloc::Allocator& memory) { return memory.allocate_async(bytes, nullptr); }
void* async_use(trtalloc::Allocator& memory, void (*work)()) {
    void* const block = async_get(memory);
    work();
    return memory.deallocate_async(block, nullptr) ? block : nullptr;
}

void* on_get(trtalloc::Allocator& memory) { return memory.allocate_on(0, bytes, nullptr); }
void* on_use(trtalloc::Allocator& memory, void (*work)()) {
    void* const block = on_get(memory);
    work();
    return memory.deallocate_async(block, nullptr) ? block : nullptr;
}

void* block_get(trtalloc::Allocator& memory) { return memory.block_async(bytes, nullptr).release(); }
void* block_use(trtalloc::Allocator& memory, void (*work)()) {
    trtalloc::Block const block = memory.block_async(bytes, nullptr);
    work();
    return block.get();
}

}  // namespace

#ifdef CUDA_API_PER_THREAD_DEFAULT_STREAM
Doors const per_thread_doors[doors] = {
#else
Doors const legacy_doors[doors] = {
#endif
    {rmm_use, rmm_get}, {async_use, async_get}, {on_use, on_get}, {block_use, block_get}};
