// Asks whether the contexts of an engine fit, as docs/fit.md shows it. The engine is a stand-in for one that streams its
// weights, and takes memory as TensorRT does. Over the simulated device. Writes what it finds to stderr.
#include <NvInferRuntime.h>
#include <trtalloc/tensorrt.hpp>

#include <cstdint>
#include <cstdio>
#include <vector>

#include "check.h"

namespace {

constexpr std::int64_t mib = 1 << 20;

// 6000 MiB of weights; a context takes 900 MiB, and 180 MiB more while weights are streamed.
class Engine {
public:
    explicit Engine(trtalloc_allocator* memory) : memory_(memory) { CHECK(setWeightStreamingBudgetV2(6000 * mib)); }
    Engine(Engine const&) = delete;
    Engine& operator=(Engine const&) = delete;
    ~Engine() { trtalloc_deallocate(memory_, weights_); }

    std::int64_t getStreamableWeightsSize() const noexcept { return 6000 * mib; }
    std::int64_t getWeightStreamingBudgetV2() const noexcept { return budget_; }
    std::int64_t getDeviceMemorySizeV2() const noexcept { return (budget_ < 6000 * mib ? 1080 : 900) * mib; }
    bool setWeightStreamingBudgetV2(std::int64_t budget) noexcept {
        trtalloc_deallocate(memory_, weights_);
        budget_ = budget;
        weights_ = trtalloc_allocate(memory_, static_cast<std::uint64_t>(budget), 0, 0);
        return weights_ != nullptr;
    }

private:
    trtalloc_allocator* memory_;
    void* weights_ = nullptr;
    std::int64_t budget_ = 0;
};

void show(trtalloc::Fit const& fit) {
    auto const in_mib = [](std::uint64_t bytes) { return static_cast<double>(bytes) / 1048576.0; };
    std::fprintf(stderr, "needed %.0f MiB, available %.0f MiB, missing %.0f MiB", in_mib(fit.needed), in_mib(fit.available),
                 in_mib(fit.missing()));
    if (auto const budget = fit.weight_streaming_budget()) {
        std::fprintf(stderr, "; weight streaming budget %.0f MiB", static_cast<double>(*budget) / 1048576.0);
    }
    std::fprintf(stderr, "\n");
}

}  // namespace

int main() {
    trtalloc::Allocator const memory{"driver=sim,limit=8GiB,log=off,wait_ms=0"};
    Engine engine{memory.get()};
    trtalloc::Fit fit = trtalloc::fit(engine, memory, 4);
    show(fit);
    while (!fit.fits && fit.weight_streaming_budget()) {
        CHECK(engine.setWeightStreamingBudgetV2(*fit.weight_streaming_budget()));
        fit = trtalloc::fit(engine, memory, 4);
        show(fit);
    }
    CHECK(fit.fits);
    // They do fit, and a fifth does not.
    std::vector<void*> contexts;
    for (int i = 0; i < 4; ++i) {
        contexts.push_back(trtalloc_allocate(memory.get(), fit.per_context, 0, 0));
        CHECK(contexts.back() != nullptr);
    }
    CHECK(trtalloc_allocate(memory.get(), fit.per_context, 0, 0) == nullptr);
    std::fprintf(stderr, "%s\n", trtalloc_last_error());
    for (void* each : contexts) {
        CHECK(trtalloc_deallocate(memory.get(), each));
    }
    return 0;
}
