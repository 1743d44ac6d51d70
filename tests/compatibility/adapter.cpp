// Calls the adapter through nvinfer1::IGpuAllocator as NVIDIA's own header declares it. One argument: `interface` needs no
// driver, `memory` runs over the simulated device.
#include <NvInferRuntime.h>
#include <trtalloc/tensorrt.hpp>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string_view>
#include <thread>
#include <vector>

#include "check.h"
#include "grow.h"

namespace {

using Allocator = nvinfer1::IGpuAllocator;

constexpr nvinfer1::AllocatorFlags resizable = 1U << static_cast<std::uint32_t>(nvinfer1::AllocatorFlag::kRESIZABLE);
static_assert(resizable == TRTALLOC_RESIZABLE, "the C flag is TensorRT's");

Allocator* adapter(trtalloc_allocator* of) {
    auto* made = static_cast<Allocator*>(trtalloc_tensorrt_allocator(of, static_cast<int32_t>(NV_TENSORRT_VERSION)));
    CHECK(made != nullptr);
    return made;
}

void describe(Allocator* a) {
    CHECK(a->getAPILanguage() == nvinfer1::APILanguage::kCPP);
    auto const info = a->getInterfaceInfo();
    CHECK(std::strcmp(info.kind, "IGpuAllocator") == 0 && info.major == 1 && info.minor == 0);
    CHECK(a->allocate(0, 0, 0) == nullptr);
    CHECK(a->allocateAsync(0, 256, resizable, nullptr) == nullptr);
    CHECK(a->deallocate(nullptr));
    CHECK(a->deallocateAsync(nullptr, nullptr));
}

void interface() {
    auto* own = trtalloc_default();
    auto* a = adapter(own);
    CHECK(a == adapter(own));
    CHECK(a == trtalloc::tensorrt(own));
    describe(a);
    int foreign = 0;
    CHECK(!a->deallocate(&foreign));
    CHECK(!a->deallocateAsync(&foreign, nullptr));
    CHECK(a->reallocate(&foreign, 0, 16) == nullptr);

    // The type is found by name across libraries.
    auto* base = static_cast<nvinfer1::IVersionedInterface*>(a);
    CHECK(dynamic_cast<Allocator*>(base) == a);
    CHECK(dynamic_cast<nvinfer1::IGpuAsyncAllocator*>(a) != nullptr);

    // An application that deletes what is not its own does no harm.
    for (int i = 0; i < 3; ++i) {
        delete a;
        CHECK(a == adapter(own));
        describe(adapter(own));
    }
}

void memory() {
    constexpr std::uint64_t mib = 1U << 20;
    trtalloc_allocator* mine = nullptr;
    CHECK(trtalloc_create("driver=sim,sim_memory=1GiB", &mine) == TRTALLOC_STATUS_OK);
    auto* a = adapter(mine);
    describe(a);

    keeps_its_bytes(a, resizable, [](Allocator* by, void* block) { CHECK(by->deallocate(block)); });
    void* block = a->allocate(3 * mib, 512, 0);
    CHECK(block != nullptr && reinterpret_cast<std::uintptr_t>(block) % 512 == 0);
    CHECK(stats(mine).requested == 3 * mib);
    CHECK(a->reallocate(block, 0, 4 * mib) == nullptr);  // not resizable
    CHECK(a->deallocate(block));
    CHECK(!a->deallocate(block));

    auto const before = stats(mine).reallocations;
    void* grown = a->allocate(mib, 0, resizable);
    CHECK(grown != nullptr);
    CHECK((grown = a->reallocate(grown, 0, 7 * mib)) != nullptr);
    CHECK((grown = a->reallocate(grown, 512, 2 * mib)) != nullptr);
    CHECK(stats(mine).reallocations == before + 2 && stats(mine).bytes_copied == 0);
    CHECK(a->deallocateAsync(grown, nullptr));

    void* queued = a->allocateAsync(5000, 256, 0, nullptr);
    CHECK(queued != nullptr && reinterpret_cast<std::uintptr_t>(queued) % 256 == 0);
    CHECK(a->deallocateAsync(queued, nullptr));
    CHECK(a->allocateAsync(5000, 256, 0, nullptr) == queued);
    CHECK(!a->deallocateAsync(static_cast<char*>(queued) + 1, nullptr));
    CHECK(a->deallocate(queued));

    // What cannot be met, or means nothing, is a null pointer.
    CHECK(a->allocate(2048 * mib, 0, 0) == nullptr);
    CHECK(a->allocate(UINT64_MAX, 0, 0) == nullptr);
    CHECK(a->allocate(64, 3, 0) == nullptr);

    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t) {
        threads.emplace_back([a] {
            for (std::uint64_t i = 1; i <= 200; ++i) {
                void* each = i % 2 ? a->allocate(i * 100, 0, 0) : a->allocateAsync(i * 100, 0, 0, nullptr);
                CHECK(each != nullptr);
                CHECK(i % 3 ? a->deallocate(each) : a->deallocateAsync(each, nullptr));
            }
        });
    }
    for (auto& thread : threads) {
        thread.join();
    }
    CHECK(stats(mine).allocated == 0 && stats(mine).allocations == stats(mine).frees);

    // An adapter with a name counts for it; a block that it made is freed through any adapter.
    auto* named = trtalloc::tensorrt(mine, "resnet");
    CHECK(named != a && named == trtalloc::tensorrt(mine, "resnet") && named != trtalloc::tensorrt(mine, "bert"));
    CHECK(trtalloc::tensorrt(mine, nullptr) == a && trtalloc::tensorrt(mine, "") == a);
    describe(named);
    CHECK(allocated_by(mine, "resnet") == 0);
    void* weights = named->allocate(3 * mib, 0, resizable);
    void* scratch = named->allocateAsync(mib, 0, 0, nullptr);
    CHECK((weights = a->reallocate(weights, 0, 5 * mib)) != nullptr && scratch != nullptr);
    CHECK(allocated_by(mine, "resnet") == 6 * mib && allocated_by(mine, "bert") == 0);
    CHECK(a->deallocateAsync(scratch, nullptr) && named->deallocate(weights));
    CHECK(allocated_by(mine, "resnet") == 0 && stats(mine).allocated == 0);
    delete named;
    CHECK(named == trtalloc::tensorrt(mine, "resnet"));
    describe(named);
    CHECK((weights = named->allocate(mib, 0, 0)) != nullptr && allocated_by(mine, "resnet") == mib);
    CHECK(named->deallocate(weights));

    // Blocks outlive the allocator, and the adapter outlives both.
    void* last = a->allocate(mib, 0, 0);
    CHECK(last != nullptr);
    trtalloc_destroy(mine);
    CHECK(a->allocate(mib, 0, 0) == nullptr);
    CHECK(a->deallocate(last));
    describe(a);
}

}  // namespace

int main(int argc, char** argv) {
    std::string_view const what = argc > 1 ? argv[1] : "";
    if (what == "interface") {
        interface();
    } else if (what == "memory") {
        memory();
    } else {
        return 2;
    }
    std::printf("%ld\n", static_cast<long>(NV_TENSORRT_VERSION));
    return 0;
}
