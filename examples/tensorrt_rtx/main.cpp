// Builds a network with TensorRT-RTX and runs it, with all device memory of builder, engine and context from one pool.
//
//     ./rtx                       builds for the GPU that is here, and runs
//     ./rtx 89 driver=sim         builds for compute capability 8.9 only, without a GPU
#include <NvInfer.h>
#include <trtalloc/tensorrt.hpp>

#include <cstdlib>
#include <iostream>
#include <memory>
#include <vector>

namespace {

class Logger final : public nvinfer1::ILogger {
    void log(Severity severity, char const* text) noexcept override {
        if (severity <= Severity::kWARNING) {
            std::cerr << text << '\n';
        }
    }
};

constexpr int rows = 64;
constexpr int columns = 256;

// relu(input x weights)
std::unique_ptr<nvinfer1::IHostMemory> build(nvinfer1::IBuilder& builder, nvinfer1::ComputeCapability capability) {
    std::vector<float> const weights(columns * columns, 0.25F);
    std::unique_ptr<nvinfer1::INetworkDefinition> const network{builder.createNetworkV2(0)};
    std::unique_ptr<nvinfer1::IBuilderConfig> const config{builder.createBuilderConfig()};
    if (!network || !config || !config->setNbComputeCapabilities(1) || !config->setComputeCapability(capability, 0)) {
        return nullptr;
    }
    auto* const input = network->addInput("input", nvinfer1::DataType::kFLOAT, nvinfer1::Dims2{rows, columns});
    auto* const constant = network->addConstant(nvinfer1::Dims2{columns, columns},
                                                {nvinfer1::DataType::kFLOAT, weights.data(), columns * columns});
    auto* const product = network->addMatrixMultiply(*input, nvinfer1::MatrixOperation::kNONE, *constant->getOutput(0),
                                                     nvinfer1::MatrixOperation::kNONE);
    auto* const relu = network->addActivation(*product->getOutput(0), nvinfer1::ActivationType::kRELU);
    relu->getOutput(0)->setName("output");
    network->markOutput(*relu->getOutput(0));
    return std::unique_ptr<nvinfer1::IHostMemory>{builder.buildSerializedNetwork(*network, *config)};
}

}  // namespace

int main(int argc, char** argv) try {
    bool const elsewhere = argc > 1;
    auto const capability =
        elsewhere ? static_cast<nvinfer1::ComputeCapability>(std::atoi(argv[1])) : nvinfer1::ComputeCapability::kCURRENT;

    Logger logger;
    // Declared before everything that uses it, so that it is destroyed last.
    trtalloc::Allocator memory{argc > 2 ? argv[2] : "limit=4GiB"};
    auto* const allocator = trtalloc::tensorrt(memory);

    nvinfer1::IBuilder* const made_builder = nvinfer1::createInferBuilder(logger);
    if (!trtalloc::created(made_builder)) {
        std::cerr << "TensorRT-RTX made no builder\n";
        return 1;
    }
    std::unique_ptr<nvinfer1::IBuilder> const builder{made_builder};
    builder->setGpuAllocator(allocator);
    auto const plan = build(*builder, capability);
    if (!plan) {
        std::cerr << "no plan\n";
        return 1;
    }
    std::cout << "a plan of " << plan->size() << " bytes\n";
    if (elsewhere) {
        return 0;
    }

    nvinfer1::IRuntime* const made_runtime = nvinfer1::createInferRuntime(logger);
    if (!trtalloc::created(made_runtime)) {
        std::cerr << "TensorRT-RTX made no runtime\n";
        return 1;
    }
    std::unique_ptr<nvinfer1::IRuntime> const runtime{made_runtime};
    runtime->setGpuAllocator(allocator);
    std::unique_ptr<nvinfer1::ICudaEngine> const engine{runtime->deserializeCudaEngine(plan->data(), plan->size())};
    std::unique_ptr<nvinfer1::IExecutionContext> const context{engine ? engine->createExecutionContext() : nullptr};
    if (!context) {
        std::cerr << "no engine, or no context: is there a GPU, and a driver for it? " << trtalloc_last_error() << '\n';
        return 1;
    }

    // Input and output use the same pool, on the stream that uses them. nullptr is the default stream.
    cudaStream_t const stream = nullptr;
    void* const input = memory.allocate_async(rows * columns * sizeof(float), stream);
    void* const output = memory.allocate_async(rows * columns * sizeof(float), stream);
    bool const queued = input != nullptr && output != nullptr && context->setTensorAddress("input", input) &&
                        context->setTensorAddress("output", output) && context->enqueueV3(stream);
    memory.deallocate_async(input, stream);
    memory.deallocate_async(output, stream);
    auto const stats = memory.stats();
    std::cout << (queued ? "queued" : "not queued") << "; TensorRT-RTX asked " << stats.allocations << " times, "
              << stats.allocated_peak << " bytes at most\n";
    return queued ? 0 : 1;
} catch (trtalloc::Error const& error) {
    std::cerr << error.what() << '\n';
    return 1;
}
