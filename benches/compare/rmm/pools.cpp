// RMM's pool and arena behind C functions. Its headers come from its wheel; no GPU is needed.
#include <sys/mman.h>

#include <cstddef>
#include <memory>

#include "device.h"

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

// The memory of the device that is set.
class DeviceMemory final : public rmm::mr::device_memory_resource {
    void* do_allocate(std::size_t bytes, rmm::cuda_stream_view) override {
        void* const block = rmm_device->allocate(rmm_device->data, bytes);
        if (block == nullptr) { throw rmm::out_of_memory{"the device is full"}; }
        return block;
    }

    void do_deallocate(void* block, std::size_t, rmm::cuda_stream_view) override {
        rmm_device->deallocate(rmm_device->data, block);
    }
};

using Resource = rmm::mr::device_memory_resource;
using Pool = rmm::mr::pool_memory_resource<Resource>;
using Arena = rmm::mr::arena_memory_resource<Resource>;

struct Both {
    Addresses addresses;
    DeviceMemory device;
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
        both->resource = std::make_unique<Arena>(&both->addresses, bytes);
    } else {
        both->resource = std::make_unique<Pool>(&both->addresses, bytes, bytes);
    }
    return both.release();
} catch (...) {
    return nullptr;
}

// Creates a pool on `device` that begins with so many bytes and grows; null on failure. There is one at a time.
void* rmm_make_on(Device const* device, std::size_t bytes) try {
    rmm_device = device;
    auto both = std::make_unique<Both>();
    both->resource = std::make_unique<Pool>(&both->device, bytes);
    return both.release();
} catch (...) {
    rmm_device = nullptr;
    return nullptr;
}

void rmm_destroy_on(void* both) {
    delete static_cast<Both*>(both);
    rmm_device = nullptr;
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
