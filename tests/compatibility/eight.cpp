// Calls the adapter as TensorRT 8 and 9 do: through the class of eight/NvInferRuntime.h, and slot by slot. Over the simulated
// device. Prints the version.
#include <NvInferRuntime.h>
#include <trtalloc/tensorrt.hpp>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <typeinfo>
#include <vector>

#include "check.h"
#include "grow.h"

namespace {

using Allocator = nvinfer1::IGpuAllocator;

constexpr std::uint64_t mib = 1U << 20;
constexpr bool has_deallocate = trtalloc::tensorrt_version >= 8200;
constexpr std::uint32_t resizable = 1U << static_cast<std::uint32_t>(nvinfer1::AllocatorFlag::kRESIZABLE);

// The functions by their place in the object's table, whatever any header says.
template <class Function>
Function slot(void* object, std::size_t index) {
    auto const table = *static_cast<void* const* const*>(object);
    return reinterpret_cast<Function>(table[index]);
}

void* allocate0(void* a, std::uint64_t size, std::uint64_t alignment, std::uint32_t flags) {
    return slot<void* (*)(void*, std::uint64_t, std::uint64_t, std::uint32_t)>(a, 0)(a, size, alignment, flags);
}
void free1(void* a, void* memory) { slot<void (*)(void*, void*)>(a, 1)(a, memory); }
void destroy(void* a, std::size_t which) { slot<void (*)(void*)>(a, which)(a); }
void* reallocate4(void* a, void* address, std::uint64_t alignment, std::uint64_t size) {
    return slot<void* (*)(void*, void*, std::uint64_t, std::uint64_t)>(a, 4)(a, address, alignment, size);
}
bool deallocate5(void* a, void* memory) { return slot<bool (*)(void*, void*)>(a, 5)(a, memory); }

void by_slots(trtalloc_allocator* mine) {
    void* a = trtalloc_tensorrt_allocator(mine, trtalloc::tensorrt_version);
    CHECK(a != nullptr);
    CHECK(allocate0(a, 0, 0, 0) == nullptr);
    void* block = allocate0(a, 3 * mib, 512, 0);
    CHECK(block != nullptr && reinterpret_cast<std::uintptr_t>(block) % 512 == 0);
    CHECK(reallocate4(a, block, 0, 4 * mib) == nullptr);
    free1(a, block);
    CHECK(stats(mine).frees == 1 && stats(mine).allocated == 0);
    free1(a, block);
    free1(a, nullptr);
    CHECK(stats(mine).frees == 1);
    void* grown = allocate0(a, mib, 256, resizable);
    CHECK(grown != nullptr);
    CHECK((grown = reallocate4(a, grown, 256, 6 * mib)) != nullptr);
    CHECK(stats(mine).reallocations == 1 && stats(mine).bytes_copied == 0);
    if (has_deallocate) {
        CHECK(deallocate5(a, grown));
        CHECK(!deallocate5(a, grown));
        CHECK(deallocate5(a, nullptr));
    } else {
        free1(a, grown);
    }
    CHECK(stats(mine).frees == 2 && stats(mine).allocated == 0);
    // The deleting destructor gives a live object back.
    destroy(a, 3);
    void* again = allocate0(a, 64, 0, 0);
    CHECK(again != nullptr);
    free1(a, again);
}

void take_back(Allocator* a, void* memory) {
#if EIGHT_MAJOR > 8 || EIGHT_MINOR >= 2
    CHECK(a->deallocate(memory));
#else
    a->free(memory);
#endif
}

void by_name(trtalloc_allocator* mine) {
    Allocator* a = trtalloc::tensorrt(mine);
    CHECK(a == trtalloc::tensorrt(mine));
    CHECK(a->allocate(0, 0, 0) == nullptr);
    void* block = a->allocate(2 * mib + 1, 256, resizable);
    CHECK(block != nullptr);
    CHECK((block = a->reallocate(block, 0, 9 * mib)) != nullptr);
    // What cannot be done leaves the block as it was.
    CHECK(a->reallocate(block, 0, 2048 * mib) == nullptr);
    CHECK((block = a->reallocate(block, 512, mib)) != nullptr);
    take_back(a, block);
    a->free(nullptr);
    int foreign = 0;
    a->free(&foreign);
    CHECK(a->reallocate(&foreign, 0, 16) == nullptr);
    CHECK(a->allocate(2048 * mib, 0, 0) == nullptr);
    CHECK(a->allocate(UINT64_MAX, 0, 0) == nullptr);
    CHECK(a->allocate(64, 3, 0) == nullptr);

    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t) {
        threads.emplace_back([a] {
            for (std::uint64_t i = 1; i <= 200; ++i) {
                void* each = a->allocate(i * 100, 0, 0);
                CHECK(each != nullptr);
                take_back(a, each);
            }
        });
    }
    for (auto& thread : threads) {
        thread.join();
    }
    CHECK(stats(mine).allocated == 0 && stats(mine).allocations == stats(mine).frees);
    for (int i = 0; i < 3; ++i) {
        delete a;
        CHECK(a == trtalloc::tensorrt(mine));
    }
    void* last = a->allocate(mib, 0, 0);
    CHECK(last != nullptr);
    trtalloc_destroy(mine);
    CHECK(a->allocate(mib, 0, 0) == nullptr);
    take_back(a, last);
}

// An adapter with a name counts for it; a block that it made is freed through any adapter.
void with_a_name(trtalloc_allocator* mine) {
    Allocator* a = trtalloc::tensorrt(mine);
    Allocator* named = trtalloc::tensorrt(mine, "resnet");
    CHECK(named != a && named == trtalloc::tensorrt(mine, "resnet") && named != trtalloc::tensorrt(mine, "bert"));
    CHECK(trtalloc::tensorrt(mine, nullptr) == a);
    void* block = named->allocate(3 * mib, 0, resizable);
    CHECK((block = a->reallocate(block, 0, 5 * mib)) != nullptr);
    CHECK(allocated_by(mine, "resnet") == 5 * mib);
    a->free(block);
    destroy(named, 3);
    CHECK((block = named->allocate(mib, 0, 0)) != nullptr && allocated_by(mine, "resnet") == mib);
    take_back(named, block);
    CHECK(allocated_by(mine, "resnet") == 0 && allocated_by(mine, "bert") == 0);
}

}  // namespace

int main() {
    trtalloc_allocator* mine = nullptr;
    CHECK(trtalloc_create("driver=sim,sim_memory=1GiB,log=off", &mine) == TRTALLOC_STATUS_OK);
    by_slots(mine);
    keeps_its_bytes(trtalloc::tensorrt(mine), resizable, take_back);
    CHECK(stats(mine).bytes_copied == 0);
    with_a_name(mine);
    by_name(mine);
    std::printf("%ld\n", static_cast<long>(trtalloc::tensorrt_version));
    return 0;
}
