// A program of TensorRT-RTX, linked with NVIDIA's library, that gives its objects our allocator. Needs no GPU: the library
// makes its objects and builds plans without one. One argument: build, orders,
// threads, exit or all.
#include <NvInfer.h>
#include <trtalloc/tensorrt.hpp>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string_view>
#include <thread>
#include <vector>

#include "check.h"
#include "logger.h"

namespace {

using nvinfer1::IBuilder;
using nvinfer1::IHostMemory;
using nvinfer1::IRuntime;

// relu(a + a), and a matrix product with a constant, for a compute capability that is named.
std::unique_ptr<IHostMemory> plan(IBuilder& builder) {
    static std::vector<float> const weights(32 * 16, 0.5F);
    std::unique_ptr<nvinfer1::INetworkDefinition> network{builder.createNetworkV2(0)};
    std::unique_ptr<nvinfer1::IBuilderConfig> config{builder.createBuilderConfig()};
    CHECK(network && config);
    CHECK(config->setNbComputeCapabilities(1));
    CHECK(config->setComputeCapability(nvinfer1::ComputeCapability::kSM89, 0));
    config->setMemoryPoolLimit(nvinfer1::MemoryPoolType::kWORKSPACE, 64U << 20);
    auto* input = network->addInput("input", nvinfer1::DataType::kFLOAT, nvinfer1::Dims2{4, 32});
    CHECK(input);
    auto* sum = network->addElementWise(*input, *input, nvinfer1::ElementWiseOperation::kSUM);
    auto* relu = network->addActivation(*sum->getOutput(0), nvinfer1::ActivationType::kRELU);
    auto* constant = network->addConstant(nvinfer1::Dims2{32, 16},
                                          {nvinfer1::DataType::kFLOAT, weights.data(), 32 * 16});
    auto* product = network->addMatrixMultiply(*relu->getOutput(0), nvinfer1::MatrixOperation::kNONE,
                                               *constant->getOutput(0), nvinfer1::MatrixOperation::kNONE);
    CHECK(product);
    product->getOutput(0)->setName("output");
    network->markOutput(*product->getOutput(0));
    return std::unique_ptr<IHostMemory>{builder.buildSerializedNetwork(*network, *config)};
}

void build() {
    Logger logger;
    trtalloc::Allocator memory{"driver=sim"};
    trtalloc::Allocator other{"driver=sim"};
    std::unique_ptr<IRuntime> runtime{nvinfer1::createInferRuntime(logger)};
    CHECK(trtalloc::created(runtime.get()));
    std::unique_ptr<IBuilder> builder{nvinfer1::createInferBuilder(logger)};
    CHECK(trtalloc::created(builder.get()));
    // Another one, the default, and ours: what is set last holds.
    for (auto* each : {trtalloc::tensorrt(other), static_cast<nvinfer1::IGpuAllocator*>(nullptr),
                       trtalloc::tensorrt(trtalloc_default()), trtalloc::tensorrt(memory)}) {
        runtime->setGpuAllocator(each);
        builder->setGpuAllocator(each);
    }
    auto first = plan(*builder);
    CHECK(first && first->size() > 1000 && logger.errors == 0);
    auto second = plan(*builder);
    CHECK(second && second->size() > 1000);
    CHECK(stats(memory.get()).allocated == 0);
    // A plan of another kind is refused, allocator or not. A good one needs a driver: this program is run without.
    char const nonsense[64] = {};
    CHECK(runtime->deserializeCudaEngine(nonsense, sizeof nonsense) == nullptr);
    CHECK(logger.errors > 0);
    CHECK(stats(memory.get()).allocated == 0);
    // The library's own calls through the adapter come with a GPU; the object it holds is alive.
    CHECK(trtalloc::tensorrt(memory)->deallocate(nullptr));
}

trtalloc_tag_stats named(trtalloc::Allocator const& memory, char const* name) {
    trtalloc_tag_stats figures{};
    CHECK(trtalloc_tag_stats_get(memory.get(), -1, name, &figures, sizeof figures) == TRTALLOC_STATUS_OK);
    return figures;
}

// Two runtimes and a builder with a name each. Without a GPU the library asks none of them for memory, also while it builds a
// plan; what is asked through the interface that an object holds counts for its name.
void names() {
    Logger logger;
    trtalloc::Allocator memory{"driver=sim"};
    std::unique_ptr<IRuntime> resnet{nvinfer1::createInferRuntime(logger)};
    std::unique_ptr<IRuntime> bert{nvinfer1::createInferRuntime(logger)};
    std::unique_ptr<IBuilder> builder{nvinfer1::createInferBuilder(logger)};
    CHECK(trtalloc::created(resnet.get()) && trtalloc::created(bert.get()) && trtalloc::created(builder.get()));
    trtalloc::attach(*resnet, memory, "resnet");
    trtalloc::attach(*bert, memory, "bert");
    trtalloc::attach(*builder, memory, "builder");
    CHECK(plan(*builder) != nullptr && logger.errors == 0);
    for (char const* each : {"resnet", "bert", "builder"}) {
        CHECK(named(memory, each).allocations == 0);
    }
    std::vector<std::thread> threads;
    std::array<void*, 3> weights{};
    for (std::uint64_t each : {1, 2}) {
        threads.emplace_back([&memory, &weights, each] {
            auto* const holds = trtalloc::tensorrt(memory, each == 1 ? "resnet" : "bert");
            weights[each] = holds->allocate(each << 20, 256, 0);
            void* const scratch = holds->allocateAsync(each << 22, 256, 0, nullptr);
            CHECK(weights[each] != nullptr && scratch != nullptr && holds->deallocateAsync(scratch, nullptr));
        });
    }
    for (auto& thread : threads) {
        thread.join();
    }
    for (std::uint64_t each : {1, 2}) {
        auto const figures = named(memory, each == 1 ? "resnet" : "bert");
        CHECK(figures.allocated == each << 20 && figures.allocated_peak == 5 * (each << 20));
        CHECK(figures.allocations == 2 && figures.frees == 1);
    }
    CHECK(named(memory, "builder").allocations == 0);
    for (void* each : weights) {
        CHECK(trtalloc_deallocate(memory.get(), each));
    }
}

void orders() {
    std::array<int, 4> order{0, 1, 2, 3};
    int done = 0;
    do {
        Logger logger;
        trtalloc_allocator* memory = nullptr;
        CHECK(trtalloc_create("driver=sim,sim_memory=256MiB", &memory) == TRTALLOC_STATUS_OK);
        auto* allocator = trtalloc::tensorrt(memory);
        std::unique_ptr<IRuntime> runtime{nvinfer1::createInferRuntime(logger)};
        std::unique_ptr<IBuilder> builder{nvinfer1::createInferBuilder(logger)};
        CHECK(trtalloc::created(runtime.get()) && trtalloc::created(builder.get()));
        runtime->setGpuAllocator(allocator);
        builder->setGpuAllocator(allocator);
        auto built = plan(*builder);
        CHECK(built && built->size() > 1000);
        void* block = allocator->allocateAsync(1U << 20, 256, 0, nullptr);
        CHECK(block != nullptr);
        for (int which : order) {
            switch (which) {
                case 0: trtalloc_destroy(memory); break;
                case 1: runtime.reset(); break;
                case 2: builder.reset(); break;
                default: built.reset(); break;
            }
        }
        // Closed, and still there: a block that is out is taken back, a request gets nothing.
        CHECK(allocator->allocateAsync(64, 0, 0, nullptr) == nullptr);
        CHECK(allocator->deallocateAsync(block, nullptr));
        ++done;
    } while (std::next_permutation(order.begin(), order.end()));
    CHECK(done == 24);
}

void threads() {
    trtalloc::Allocator memory{"driver=sim,sim_memory=1GiB"};
    std::vector<std::thread> all;
    for (int t = 0; t < 4; ++t) {
        all.emplace_back([&memory] {
            Logger logger;
            auto* allocator = trtalloc::tensorrt(memory);
            std::unique_ptr<IRuntime> runtime{nvinfer1::createInferRuntime(logger)};
            std::unique_ptr<IBuilder> builder{nvinfer1::createInferBuilder(logger)};
            CHECK(trtalloc::created(runtime.get()) && trtalloc::created(builder.get()));
            runtime->setGpuAllocator(allocator);
            builder->setGpuAllocator(allocator);
            auto built = plan(*builder);
            CHECK(built && built->size() > 1000);
            for (std::uint64_t i = 1; i <= 100; ++i) {
                void* block = allocator->allocateAsync(i << 12, 256, 0, nullptr);
                CHECK(block != nullptr && allocator->deallocateAsync(block, nullptr));
            }
        });
    }
    for (auto& thread : all) {
        thread.join();
    }
    CHECK(memory.stats().allocated == 0 && memory.stats().allocations == 400);
}

// What is static lives until the process ends, and goes in the opposite order of its making: once the allocator before the
// objects that hold it, once after them, and once never.
void exit() {
    static Logger logger;
    static std::unique_ptr<IRuntime> early;
    static trtalloc::Allocator memory{"driver=sim"};
    static std::unique_ptr<IBuilder> late;
    early.reset(nvinfer1::createInferRuntime(logger));
    late.reset(nvinfer1::createInferBuilder(logger));
    static std::unique_ptr<IRuntime> own{nvinfer1::createInferRuntime(logger)};
    CHECK(trtalloc::created(early.get()) && trtalloc::created(late.get()) && trtalloc::created(own.get()));
    early->setGpuAllocator(trtalloc::tensorrt(memory));
    late->setGpuAllocator(trtalloc::tensorrt(memory));
    own->setGpuAllocator(trtalloc::tensorrt(trtalloc_default()));
    CHECK(plan(*late));
    static trtalloc::Block const block = memory.block_async(1U << 20, nullptr);
    CHECK(memory.allocate(1U << 20) != nullptr);
}

}  // namespace

int main(int argc, char** argv) {
    // What an allocator that was closed says of a request is said on purpose here.
    setenv("TRTALLOC_LOG", "off", 1);
    std::string_view const what = argc > 1 ? argv[1] : "";
    bool const all = what == "all";
    CHECK(all || what == "build" || what == "orders" || what == "threads" || what == "exit");
    if (all || what == "build") {
        build();
        names();
    }
    if (all || what == "orders") orders();
    if (all || what == "threads") threads();
    if (all || what == "exit") exit();
    return 0;
}
