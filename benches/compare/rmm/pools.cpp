// RMM's pool and arena behind C functions. Its headers come from its wheel; no GPU is needed.
#include <sys/mman.h>

#include <cstddef>
#include <memory>

#include <rmm/mr/device/arena_memory_resource.hpp>
#include <rmm/mr/device/device_memory_resource.hpp>
#include <rmm/mr/device/pool_memory_resource.hpp>

namespace {

// Addresses without memory behind them: a pool never accesses its blocks.
class Addresses final : public rmm::mr::device_memory_resource {
    void* do_allocate(std::size_t bytes, rmm::cuda_stream_view) override {
        void* const base =
            mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (base == MAP_FAILED) { throw rmm::out_of_memory{"no addresses"}; }
        return base;
    }

    void do_deallocate(void* base, std::size_t bytes, rmm::cuda_stream_view) override { munmap(base, bytes); }
};

using Resource = rmm::mr::device_memory_resource;
using Pool = rmm::mr::pool_memory_resource<Resource>;
using Arena = rmm::mr::arena_memory_resource<Resource>;

struct Both {
    Addresses upstream;
    std::unique_ptr<Resource> resource;
};

}  // namespace

// Other symbols stay hidden.
#pragma GCC visibility push(default)
extern "C" {

// Creates a pool, or an arena, of that many bytes, which cannot grow; null on failure.
void* rmm_make(bool arena, std::size_t bytes) try {
    auto both = std::make_unique<Both>();
    if (arena) {
        both->resource = std::make_unique<Arena>(&both->upstream, bytes);
    } else {
        both->resource = std::make_unique<Pool>(&both->upstream, bytes, bytes);
    }
    return both.release();
} catch (...) {
    return nullptr;
}

void rmm_destroy(void* both) { delete static_cast<Both*>(both); }

void* rmm_resource(void* both) { return static_cast<Both*>(both)->resource.get(); }

void* rmm_allocate(void* resource, std::size_t bytes, void* stream) try {
    return static_cast<Resource*>(resource)->allocate(bytes, static_cast<cudaStream_t>(stream));
} catch (...) {
    return nullptr;
}

bool rmm_deallocate(void* resource, void* block, std::size_t bytes, void* stream) try {
    static_cast<Resource*>(resource)->deallocate(block, bytes, static_cast<cudaStream_t>(stream));
    return true;
} catch (...) {
    return false;
}
}
#pragma GCC visibility pop
