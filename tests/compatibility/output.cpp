// Calls the output allocator as TensorRT does inside an enqueue, through the class of the NvInferRuntime.h that it is compiled
// with, shares scratch memory among contexts, and asks whether contexts fit. Over the simulated device. Prints nothing.
#include <NvInferRuntime.h>
#include <trtalloc/tensorrt.hpp>

#include <chrono>
#include <cstdint>
#include <cstring>
#include <thread>
#include <vector>

#include <unistd.h>

#include "check.h"

namespace {

constexpr std::uint64_t mib = 1U << 20;

// TensorRT 10 and later call the one with a stream, and older ones do not have it.
template <class Output>
auto ask(Output& output, char const* name, void* current, std::uint64_t size, std::uint64_t alignment, int)
    -> decltype(output.reallocateOutputAsync(name, current, size, alignment, nullptr)) {
    return output.reallocateOutputAsync(name, current, size, alignment, nullptr);
}
template <class Output>
void* ask(Output& output, char const* name, void* current, std::uint64_t size, std::uint64_t alignment, long) {
    return output.reallocateOutput(name, current, size, alignment);
}
void* ask(nvinfer1::IOutputAllocator& output, char const* name, std::uint64_t size) {
    return ask(output, name, nullptr, size, 256, 0);
}

void shape(nvinfer1::IOutputAllocator& output, char const* name, std::vector<std::int32_t> const& extents) {
    nvinfer1::Dims dims{};
    dims.nbDims = static_cast<std::int32_t>(extents.size());
    for (std::size_t i = 0; i < extents.size() && i < 8; ++i) {
        dims.d[i] = extents[i];
    }
    output.notifyShape(name, dims);
}

template <class Body>
trtalloc_status thrown(Body body) {
    try {
        body();
    } catch (trtalloc::Error const& error) {
        return error.status();
    }
    return TRTALLOC_STATUS_OK;
}

void sizes(trtalloc_allocator* mine) {
    trtalloc::Outputs outputs{mine};
    nvinfer1::IOutputAllocator& output = *outputs.get();
    CHECK(thrown([&] { outputs.at("boxes"); }) == TRTALLOC_STATUS_INVALID_ARGUMENT);

    // Small ones are plain blocks; what becomes smaller keeps its memory.
    void* const small = ask(output, "boxes", 1000);
    CHECK(small != nullptr && ask(output, "boxes", 10) == small && ask(output, "boxes", 1024) == small);
    shape(output, "boxes", {1, -1, 4});
    CHECK(outputs.at("boxes").memory == small && outputs.at("boxes").bytes == 1024 &&
          outputs.at("boxes").capacity == 1024 && outputs.at("boxes").rank == 3 &&
          outputs.at("boxes").extents[1] == -1 && outputs.at("boxes").extents[3] == 0);

    // Large ones grow where they lie, by and by, without a copy; a second tensor is another block.
    void* const large = ask(output, "boxes", 3 * mib);
    void* const other = ask(output, "scores", 3 * mib);
    CHECK(large != nullptr && other != nullptr && other != large);
    auto const before = stats(mine);
    for (std::uint64_t size = 3; size <= 60; ++size) {
        CHECK(ask(output, "boxes", size * mib) == large);
    }
    CHECK(stats(mine).reallocations_in_place > before.reallocations_in_place && stats(mine).bytes_copied == 0);
    CHECK(stats(mine).allocations == before.allocations);
    shape(output, "boxes", {2, 3});
    CHECK(outputs.at("boxes").rank == 2 && outputs.at("boxes").bytes == 60 * mib);

    // What cannot be had leaves what there is.
    CHECK(ask(output, "boxes", 1ULL << 50) == nullptr && ask(output, "boxes", 0) == nullptr);
    CHECK(ask(output, "boxes", nullptr, mib, 3, 0) == nullptr);
    CHECK(outputs.at("boxes").memory == large && ask(output, "boxes", 60 * mib) == large);
    shape(output, "boxes", {1, 1, 1, 1, 1, 1, 1, 1});
    CHECK(outputs.at("boxes").rank == 8);

    // No name is a name too; one without end of its own, and one in no encoding.
    CHECK(ask(output, nullptr, 8) != nullptr && ask(output, "\xff", 8) != nullptr);

    // Taken: the caller's, and the next enqueue gets other memory.
    trtalloc_output const taken = outputs.take("boxes");
    CHECK(taken.memory == large && ask(output, "boxes", mib) != large);
    CHECK(trtalloc_deallocate(mine, taken.memory) && !trtalloc_deallocate(mine, taken.memory));
    outputs.release("scores");
    CHECK(thrown([&] { outputs.at("scores"); }) == TRTALLOC_STATUS_INVALID_ARGUMENT);

    trtalloc::Outputs moved{std::move(outputs)};
    CHECK(moved.get() == &output && moved.at("boxes").memory != nullptr);
}

void refusals(trtalloc_allocator* mine) {
    trtalloc_output out{};
    int nothing = 0;
    for (void* no : {static_cast<void*>(nullptr), static_cast<void*>(&nothing), static_cast<void*>(mine)}) {
        CHECK(trtalloc_output_get(no, "x", &out) == TRTALLOC_STATUS_INVALID_ARGUMENT);
        CHECK(trtalloc_output_take(no, "x", &out) == TRTALLOC_STATUS_INVALID_ARGUMENT);
        CHECK(trtalloc_output_release(no, nullptr) == TRTALLOC_STATUS_INVALID_ARGUMENT);
    }
    CHECK(trtalloc_tensorrt_output_allocator(nullptr, trtalloc::tensorrt_version) == nullptr);
    for (std::int32_t version : {0, 7000, 8400, 25000}) {
        CHECK(trtalloc_tensorrt_output_allocator(mine, version) == nullptr);
    }
    void* const output = trtalloc_tensorrt_output_allocator(mine, trtalloc::tensorrt_version);
    CHECK(output != nullptr && output != trtalloc_tensorrt_output_allocator(mine, trtalloc::tensorrt_version));
    CHECK(ask(*static_cast<nvinfer1::IOutputAllocator*>(output), "x", 100) != nullptr);
    CHECK(trtalloc_output_get(output, nullptr, &out) == TRTALLOC_STATUS_INVALID_ARGUMENT);
    CHECK(trtalloc_output_get(output, "x", nullptr) == TRTALLOC_STATUS_INVALID_ARGUMENT);
    CHECK(trtalloc_output_take(output, "x", nullptr) == TRTALLOC_STATUS_INVALID_ARGUMENT);
    CHECK(trtalloc_output_get(output, "x", &out) == TRTALLOC_STATUS_OK && out.memory != nullptr);
    CHECK(trtalloc_output_release(output, nullptr) == TRTALLOC_STATUS_OK);
    CHECK(trtalloc_output_release(output, "x") == TRTALLOC_STATUS_OK);
}

void threads(trtalloc_allocator* mine) {
    std::vector<std::thread> all;
    for (std::uint64_t thread = 0; thread < 4; ++thread) {
        all.emplace_back([=] {
            trtalloc::Outputs outputs{mine};
            for (std::uint64_t size = 1; size < 40; ++size) {
                CHECK(ask(*outputs.get(), "a", size * 100'000 + thread) != nullptr);
                CHECK(ask(*outputs.get(), "b", size * mib) != nullptr);
            }
        });
    }
    for (auto& thread : all) {
        thread.join();
    }
}

// Called with an Outputs when memory has run out: gives back what it has, twice, and counts where "scores" cannot be had.
struct Giver {
    trtalloc::Outputs& outputs;
    int left;
    int refused = 0;
};
bool give(void* context, std::int32_t, std::uint64_t) {
    auto& giver = *static_cast<Giver*>(context);
    trtalloc_output out{};
    if (trtalloc_output_get(giver.outputs.get(), "scores", &out) == TRTALLOC_STATUS_INVALID_ARGUMENT) {
        CHECK(trtalloc_output_take(giver.outputs.get(), "scores", &out) == TRTALLOC_STATUS_INVALID_ARGUMENT);
        ++giver.refused;
    }
    giver.outputs.release();
    return giver.left-- > 0;
}

// A request that waits for memory keeps no one from releasing other outputs of the same object: neither another thread nor its
// own out-of-memory handler.
void releases_while_a_request_waits() {
    alarm(60);  // ends the program if a call waits for ever
    {
        trtalloc::Allocator memory{"driver=sim,log=off,limit=64MiB,wait_ms=100,retry_ms=20000"};
        trtalloc::Outputs outputs{memory};
        CHECK(ask(*outputs.get(), "boxes", 40 * mib) != nullptr);
        std::thread other([&] {
            std::this_thread::sleep_for(std::chrono::milliseconds(50));
            outputs.release("boxes");
        });
        CHECK(ask(*outputs.get(), "scores", 40 * mib) != nullptr);
        other.join();
        CHECK(stats(memory.get()).allocated == 40 * mib);
    }
    trtalloc::Allocator memory{"driver=sim,log=off,limit=64MiB,wait_ms=100"};
    trtalloc::Outputs outputs{memory};
    Giver giver{outputs, 2};
    memory.on_oom(give, &giver);
    CHECK(ask(*outputs.get(), "boxes", 40 * mib) != nullptr && ask(*outputs.get(), "scores", 40 * mib) != nullptr);
    CHECK(giver.left == 1 && thrown([&] { outputs.at("boxes"); }) == TRTALLOC_STATUS_INVALID_ARGUMENT);
    // An output that grows is neither had nor released meanwhile, and grows into what the other one had.
    CHECK(giver.refused == 0);
    CHECK(ask(*outputs.get(), "boxes", 20 * mib) != nullptr && ask(*outputs.get(), "scores", 60 * mib) != nullptr);
    CHECK(giver.refused == 1 && giver.left == 0 && outputs.at("scores").bytes == 60 * mib && stats(memory.get()).allocated == 60 * mib);
    // One that was to be released while it could not grow is.
    CHECK(ask(*outputs.get(), "scores", 100 * mib) == nullptr);
    CHECK(thrown([&] { outputs.at("scores"); }) == TRTALLOC_STATUS_INVALID_ARGUMENT);
    CHECK(stats(memory.get()).allocated == 0);
    // Without a release it keeps what it had.
    memory.on_oom(nullptr, nullptr);
    CHECK(ask(*outputs.get(), "scores", 40 * mib) != nullptr && ask(*outputs.get(), "scores", 100 * mib) == nullptr);
    CHECK(outputs.at("scores").bytes == 40 * mib && stats(memory.get()).allocated == 40 * mib);
    alarm(0);
}

// What SharedScratch uses of nvinfer1::IExecutionContext: as 10 and later have it, and as older ones do.
struct Newer {
    std::size_t need = 0;
    void* memory = nullptr;
    std::int64_t size = 0;
    std::size_t updateDeviceMemorySizeForShapes() noexcept { return need; }
    void setDeviceMemoryV2(void* to, std::int64_t bytes) noexcept {
        memory = to;
        size = bytes;
    }
};
struct Older {
    struct Engine {
        std::size_t getDeviceMemorySize() const noexcept { return 7 * mib; }
    };
    Engine engine;
    void* memory = nullptr;
    Engine const& getEngine() const noexcept { return engine; }
    void setDeviceMemory(void* to) noexcept { memory = to; }
};

void scratch(trtalloc_allocator* mine) {
    int streams[2];
    {
        trtalloc::SharedScratch shared{mine};
        Newer first, second, unset;
        Older older;
        first.need = 10 * mib;
        second.need = 30 * mib;
        { auto const lease = shared.lend(first, &streams[0]); }
        CHECK(first.memory != nullptr && first.size == 10 * mib && shared.size() == 10 * mib);
        { auto const lease = shared.lend(second, &streams[0]); }
        CHECK(second.size == 30 * mib && stats(mine).bytes_copied == 0);
        { auto const lease = shared.lend(first, &streams[0]); }
        CHECK(first.memory == second.memory && first.size == 30 * mib);
        { auto const lease = shared.lend(older, &streams[0]); }
        CHECK(older.memory == first.memory);
        // Another stream only behind what was enqueued.
        CHECK(thrown([&] { (void)shared.lend(second, &streams[1]); }) == TRTALLOC_STATUS_INVALID_ARGUMENT);
        shared.ordered();
        { auto const lease = shared.lend(second, &streams[1]); }
        // Shapes that are not set, and more than there is: the context keeps what it had.
        CHECK(thrown([&] { (void)shared.lend(unset, &streams[1]); }) == TRTALLOC_STATUS_INVALID_ARGUMENT);
        CHECK(unset.memory == nullptr);
        second.need = std::size_t{1} << 50;
        CHECK(thrown([&] { (void)shared.lend(second, &streams[1]); }) == TRTALLOC_STATUS_OUT_OF_MEMORY);
        CHECK(second.size == 30 * mib && shared.size() == 30 * mib);
        // The default stream of a thread is another stream in each thread.
        void* const of_thread = reinterpret_cast<void*>(2);
        shared.ordered();
        { auto const lease = shared.lend(first, of_thread); }
        { auto const lease = shared.lend(first, of_thread); }
        std::thread([&] {
            CHECK(thrown([&] { (void)shared.lend(first, of_thread); }) == TRTALLOC_STATUS_INVALID_ARGUMENT);
            shared.ordered();
            { auto const lease = shared.lend(first, of_thread); }
        }).join();
        CHECK(thrown([&] { (void)shared.lend(first, of_thread); }) == TRTALLOC_STATUS_INVALID_ARGUMENT);
        shared.ordered();
        { auto const lease = shared.lend(first, &streams[1]); }
        // A lease keeps others waiting.
        auto lease = shared.lend(first, &streams[1]);
        bool waited = false;
        std::thread other([&] {
            auto const theirs = shared.lend(older, &streams[1]);
            CHECK(waited);
        });
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
        waited = true;
        lease.unlock();
        other.join();
    }
    CHECK(stats(mine).allocated == 0);
}

// What fit() uses of nvinfer1::ICudaEngine: as 10.1 and later have it, as 10.0 does, and as 8 and 9 do. The weights lie in
// the pool, and scratch comes with streaming.
struct Streaming {
    trtalloc_allocator* memory;
    std::int64_t weights;
    void* held = nullptr;
    std::int64_t budget = weights;
    std::int64_t activations = static_cast<std::int64_t>(100 * mib);

    Streaming(trtalloc_allocator* of, std::uint64_t bytes) : memory(of), weights(static_cast<std::int64_t>(bytes)) {
        CHECK(setWeightStreamingBudgetV2(weights));
    }
    Streaming(Streaming const&) = delete;
    Streaming& operator=(Streaming const&) = delete;
    ~Streaming() { CHECK(trtalloc_deallocate(memory, held)); }

    std::int64_t getStreamableWeightsSize() const noexcept { return weights; }
    std::int64_t getWeightStreamingBudgetV2() const noexcept { return budget; }
    std::int64_t getDeviceMemorySizeV2() const noexcept {
        return activations + (budget < weights ? static_cast<std::int64_t>(16 * mib) : 0);
    }
    bool setWeightStreamingBudgetV2(std::int64_t to) noexcept {
        CHECK(to >= 0 && trtalloc_deallocate(memory, held));
        budget = to;
        held = to == 0 ? nullptr : trtalloc_allocate(memory, static_cast<std::uint64_t>(to), 0, 0);
        return to == 0 || held != nullptr;
    }
};
struct Plain {
    std::size_t getDeviceMemorySize() const noexcept { return 100 * mib; }
};
// The budget of TensorRT 10.0 is not touched: it has no function for it here.
struct Early : Plain {
    std::int64_t getStreamableWeightsSize() const noexcept { return 1; }
};
struct Unstreamed {
    std::int64_t getDeviceMemorySizeV2() const noexcept { return static_cast<std::int64_t>(100 * mib); }
    std::int64_t getStreamableWeightsSize() const noexcept { return 0; }
    std::int64_t getWeightStreamingBudgetV2() const noexcept { std::abort(); }
};

// Requests as many contexts' memory as given; the number that there was memory for.
std::uint64_t contexts(trtalloc_allocator* mine, std::uint64_t count, std::uint64_t bytes) {
    std::vector<void*> blocks;
    for (void* block; blocks.size() < count && (block = trtalloc_allocate(mine, bytes, 0, 0)) != nullptr;) {
        blocks.push_back(block);
    }
    for (void* block : blocks) {
        CHECK(trtalloc_deallocate(mine, block));
    }
    return blocks.size();
}

void fitting() {
    trtalloc::Allocator memory{"driver=sim,log=off,sim_memory=1GiB,limit=600MiB,wait_ms=100"};
    // Nothing is known before the first request: an engine makes it.
    CHECK(thrown([&] { trtalloc::fit(Plain{}, memory); }) == TRTALLOC_STATUS_UNSUPPORTED);
    CHECK(contexts(memory.get(), 1, 1) == 1);
    trtalloc::Fit fit = trtalloc::fit(Plain{}, memory, 6);
    CHECK(fit.per_context == 100 * mib && fit.needed == 600 * mib && fit.available == 600 * mib && fit.fits);
    CHECK(fit.missing() == 0 && fit.streamable_weights == 0 && !fit.weight_streaming_budget());
    CHECK(contexts(memory.get(), 7, 100 * mib) == 6);
    fit = trtalloc::fit(Plain{}, memory, 7);
    CHECK(!fit.fits && fit.missing() == 100 * mib && !fit.weight_streaming_budget());
    CHECK(trtalloc::fit(Plain{}, memory).needed == 100 * mib && trtalloc::fit(Plain{}, memory, 0).fits);
    CHECK(!trtalloc::fit(Plain{}, memory, UINT64_MAX).fits);
    for (auto const& each : {trtalloc::fit(Early{}, memory), trtalloc::fit(Unstreamed{}, memory)}) {
        CHECK(each.fits && each.streamable_weights == 0 && !each.weight_streaming_budget());
    }
    CHECK(thrown([] { trtalloc::fit(Plain{}, nullptr); }) == TRTALLOC_STATUS_INVALID_ARGUMENT);
    CHECK(thrown([&] { trtalloc::fit(Plain{}, memory, 1, 77); }) == TRTALLOC_STATUS_INVALID_ARGUMENT);

    Streaming engine{memory.get(), 400 * mib};
    fit = trtalloc::fit(engine, memory, 2);
    CHECK(fit.fits && fit.available == 200 * mib && fit.streamable_weights == 400 * mib &&
          fit.streaming_budget_now == 400 * mib);
    CHECK(fit.weight_streaming_budget() == static_cast<std::int64_t>(400 * mib));
    // What three contexts miss the weights give, and the scratch that streaming needs at the second look.
    fit = trtalloc::fit(engine, memory, 3);
    CHECK(!fit.fits && fit.missing() == 100 * mib);
    CHECK(fit.weight_streaming_budget() == static_cast<std::int64_t>(300 * mib));
    int looks = 0;
    for (; !fit.fits && fit.weight_streaming_budget(); fit = trtalloc::fit(engine, memory, 3)) {
        CHECK(engine.setWeightStreamingBudgetV2(*fit.weight_streaming_budget()) && ++looks < 10);
    }
    CHECK(looks == 2 && fit.fits && fit.per_context == 116 * mib && engine.budget == static_cast<std::int64_t>(252 * mib));
    CHECK(contexts(memory.get(), 4, fit.per_context) == 3);
    // A context less, and the weights may come back.
    CHECK(trtalloc::fit(engine, memory, 2).weight_streaming_budget() == static_cast<std::int64_t>(368 * mib));
    // Without any weights there is still not enough.
    fit = trtalloc::fit(engine, memory, 6);
    CHECK(!fit.fits && !fit.weight_streaming_budget());
    fit = trtalloc::fit(engine, memory, 5);
    CHECK(!fit.fits && fit.weight_streaming_budget() == static_cast<std::int64_t>(20 * mib));
}

// A name with a limit of its own leaves less than the pool, or more. The weights count for the name, too.
void fitting_with_a_name() {
    trtalloc::Allocator memory{"driver=sim,log=off,sim_memory=1GiB,limit=600MiB,wait_ms=100"};
    trtalloc_set_tag("model");
    Streaming engine{memory.get(), 200 * mib};
    CHECK(trtalloc_set_tag_limit(memory.get(), -1, "model", 450 * mib) == TRTALLOC_STATUS_OK);
    auto const look = [&](std::uint64_t count, char const* name) { return trtalloc::fit(engine, memory, count, -1, name); };
    trtalloc::Fit fit = look(2, "model");
    CHECK(fit.fits && fit.limited_by_name && fit.available == 250 * mib);
    fit = look(3, "model");
    CHECK(!fit.fits && fit.limited_by_name && fit.missing() == 50 * mib);
    CHECK(contexts(memory.get(), 3, 100 * mib) == 2);
    for (char const* other : {static_cast<char const*>(nullptr), "", "another"}) {
        fit = look(3, other);
        CHECK(fit.fits && !fit.limited_by_name && fit.available == 400 * mib);
    }
    for (fit = look(3, "model"); !fit.fits && fit.weight_streaming_budget(); fit = look(3, "model")) {
        CHECK(engine.setWeightStreamingBudgetV2(*fit.weight_streaming_budget()));
    }
    CHECK(fit.fits && engine.budget == static_cast<std::int64_t>(102 * mib));
    CHECK(contexts(memory.get(), 4, fit.per_context) == 3);
    // The limit is above what the pool has, then below what the name holds.
    CHECK(trtalloc_set_tag_limit(memory.get(), -1, "model", 900 * mib) == TRTALLOC_STATUS_OK);
    CHECK(!look(1, "model").limited_by_name && look(1, "model").available == 498 * mib);
    CHECK(trtalloc_set_tag_limit(memory.get(), -1, "model", mib) == TRTALLOC_STATUS_OK);
    CHECK(look(1, "model").limited_by_name && look(1, "model").available == 0 && !look(1, "model").fits);
    trtalloc_set_tag(nullptr);
}

#if NV_TENSORRT_MAJOR != 8 && NV_TENSORRT_MAJOR != 9
// They compile with the real classes.
[[maybe_unused]] trtalloc::Fit real(trtalloc::Allocator const& memory, nvinfer1::ICudaEngine& engine) {
    trtalloc::Fit const fit = trtalloc::fit(engine, memory, 4);
    if (auto const budget = fit.weight_streaming_budget()) {
        engine.setWeightStreamingBudgetV2(*budget);
    }
    return fit;
}
[[maybe_unused]] trtalloc::SharedScratch::Lease real(trtalloc::SharedScratch& shared, nvinfer1::IExecutionContext& context) {
    return shared.lend(context, nullptr);
}

void interface(trtalloc_allocator* mine) {
    auto* output = static_cast<nvinfer1::IOutputAllocator*>(
        trtalloc_tensorrt_output_allocator(mine, static_cast<std::int32_t>(NV_TENSORRT_VERSION)));
    CHECK(output->getAPILanguage() == nvinfer1::APILanguage::kCPP);
    auto const info = output->getInterfaceInfo();
    CHECK(std::strcmp(info.kind, "IOutputAllocator") == 0 && info.major == 1 && info.minor == 0);
    CHECK(dynamic_cast<nvinfer1::IOutputAllocator*>(static_cast<nvinfer1::IVersionedInterface*>(output)) == output);
#if NV_TENSORRT_MAJOR >= 10
    CHECK(output->reallocateOutput("old way", nullptr, 100, 0) != nullptr);
#endif
    CHECK(trtalloc_output_release(output, nullptr) == TRTALLOC_STATUS_OK);
    delete output;
    CHECK(output->reallocateOutputAsync("again", nullptr, 100, 0, nullptr) != nullptr);
    CHECK(trtalloc_output_release(output, nullptr) == TRTALLOC_STATUS_OK);
}
#else
void interface(trtalloc_allocator* mine) {
    auto* output = static_cast<nvinfer1::IOutputAllocator*>(
        trtalloc_tensorrt_output_allocator(mine, trtalloc::tensorrt_version));
    CHECK(output->getInterfaceVersion() == 1);
    // By the place in the table, whatever any header says.
    auto const table = *reinterpret_cast<void* const* const*>(output);
    auto const ask1 = reinterpret_cast<void* (*)(void*, char const*, void*, std::uint64_t, std::uint64_t)>(table[1]);
    CHECK(ask1(output, "slot", nullptr, 100, 0) != nullptr);
    auto const destroy = reinterpret_cast<void (*)(void*)>(table[4]);
    destroy(output);
    CHECK(output->reallocateOutput("again", nullptr, 100, 0) != nullptr);
    CHECK(trtalloc_output_release(output, nullptr) == TRTALLOC_STATUS_OK);
}
#endif

}  // namespace

int main() {
    trtalloc_allocator* mine = nullptr;
    CHECK(trtalloc_create("driver=sim,log=off,sim_memory=1GiB,wait_ms=100", &mine) == TRTALLOC_STATUS_OK);
    sizes(mine);
    refusals(mine);
    threads(mine);
    releases_while_a_request_waits();
    interface(mine);
    scratch(mine);
    fitting();
    fitting_with_a_name();
    CHECK(stats(mine).allocated == 0);
    trtalloc_destroy(mine);
    return 0;
}
