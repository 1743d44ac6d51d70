// TensorRT-RTX and trtalloc opened with dlopen, as plugins and launchers do, neither linked. Arguments: their paths. The
// library of ours is closed again while TensorRT-RTX holds its allocator, and stays.
#include <NvInfer.h>

#include <dlfcn.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>

#define CHECK(condition)                                                            \
    do {                                                                            \
        if (!(condition)) {                                                         \
            std::fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition);    \
            std::exit(1);                                                           \
        }                                                                           \
    } while (false)

namespace {

class Logger final : public nvinfer1::ILogger {
    void log(Severity, char const*) noexcept override {}
};

template <class Function>
Function find(void* library, char const* name) {
    void* const found = dlsym(library, name);
    CHECK(found != nullptr);
    return reinterpret_cast<Function>(found);
}

}  // namespace

int main(int argc, char** argv) {
    CHECK(argc == 3);
    void* const tensorrt = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
    CHECK(tensorrt != nullptr);
    void* const ours = dlopen(argv[2], RTLD_NOW | RTLD_LOCAL);
    CHECK(ours != nullptr);

    auto const create = find<int (*)(char const*, void**)>(ours, "trtalloc_create");
    auto const interface = find<void* (*)(void*, std::int32_t)>(ours, "trtalloc_tensorrt_allocator");
    void* memory = nullptr;
    CHECK(create("driver=sim", &memory) == 0);
    auto const version = static_cast<std::int32_t>(NV_TENSORRT_VERSION);
    CHECK(find<std::int32_t (*)()>(tensorrt, "getInferLibVersion")() / 100 == version / 100);
    auto* const allocator = static_cast<nvinfer1::IGpuAllocator*>(interface(memory, version));
    CHECK(allocator != nullptr);

    Logger logger;
    auto const make = find<void* (*)(void*, std::int32_t)>(tensorrt, "createInferBuilder_INTERNAL");
    std::unique_ptr<nvinfer1::IBuilder> const builder{static_cast<nvinfer1::IBuilder*>(make(&logger, version))};
    CHECK(builder != nullptr);
    builder->setGpuAllocator(allocator);
    CHECK(dlclose(ours) == 0);

    std::unique_ptr<nvinfer1::INetworkDefinition> const network{builder->createNetworkV2(0)};
    std::unique_ptr<nvinfer1::IBuilderConfig> const config{builder->createBuilderConfig()};
    CHECK(config->setNbComputeCapabilities(1));
    CHECK(config->setComputeCapability(nvinfer1::ComputeCapability::kSM89, 0));
    auto* const input = network->addInput("input", nvinfer1::DataType::kFLOAT, nvinfer1::Dims2{4, 8});
    auto* const relu = network->addActivation(*input, nvinfer1::ActivationType::kRELU);
    network->markOutput(*relu->getOutput(0));
    std::unique_ptr<nvinfer1::IHostMemory> const plan{builder->buildSerializedNetwork(*network, *config)};
    CHECK(plan != nullptr && plan->size() > 1000);
    void* const block = allocator->allocateAsync(1U << 20, 256, 0, nullptr);
    CHECK(block != nullptr && allocator->deallocateAsync(block, nullptr));
    return 0;
}
