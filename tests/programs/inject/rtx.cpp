// A program of TensorRT-RTX that does not use trtalloc and needs no GPU: it creates a runtime and builds a plan. With
// LOOK_UP it opens the library itself; its argument is the path.
#include <NvInfer.h>
#include <dlfcn.h>

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

Logger logger;

template <class Object>
std::unique_ptr<Object> create([[maybe_unused]] void* library, [[maybe_unused]] char const* name) {
#ifdef LOOK_UP
    auto const function = reinterpret_cast<void* (*)(void*, std::int32_t)>(dlsym(library, name));
    CHECK(function != nullptr);
    return std::unique_ptr<Object>{static_cast<Object*>(function(&logger, NV_TENSORRT_VERSION))};
#else
    if constexpr (std::is_same<Object, nvinfer1::IRuntime>::value) {
        return std::unique_ptr<Object>{nvinfer1::createInferRuntime(logger)};
    } else {
        return std::unique_ptr<Object>{nvinfer1::createInferBuilder(logger)};
    }
#endif
}

}  // namespace

int main(int, [[maybe_unused]] char** argv) {
    void* library = nullptr;
#ifdef LOOK_UP
    library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
    CHECK(library != nullptr);
#endif
    auto const runtime = create<nvinfer1::IRuntime>(library, "createInferRuntime_INTERNAL");
    auto const builder = create<nvinfer1::IBuilder>(library, "createInferBuilder_INTERNAL");
    CHECK(runtime && builder);
    std::unique_ptr<nvinfer1::INetworkDefinition> const network{builder->createNetworkV2(0)};
    std::unique_ptr<nvinfer1::IBuilderConfig> const config{builder->createBuilderConfig()};
    CHECK(config->setNbComputeCapabilities(1));
    CHECK(config->setComputeCapability(nvinfer1::ComputeCapability::kSM89, 0));
    auto* const input = network->addInput("input", nvinfer1::DataType::kFLOAT, nvinfer1::Dims2{4, 8});
    network->markOutput(*network->addActivation(*input, nvinfer1::ActivationType::kRELU)->getOutput(0));
    std::unique_ptr<nvinfer1::IHostMemory> const plan{builder->buildSerializedNetwork(*network, *config)};
    CHECK(plan != nullptr && plan->size() > 1000);
    std::printf("a plan\n");
    return 0;
}
