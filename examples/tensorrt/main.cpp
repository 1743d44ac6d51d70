// Runs a TensorRT engine (TensorRT 8.5 to 11) with all of its device memory from one capped pool.
//
//     ./infer ENGINE [OPTIONS]       options of trtalloc, e.g. limit=4GiB
#include <NvInferRuntime.h>
#include <trtalloc/tensorrt.hpp>

#include <cstdint>
#include <fstream>
#include <iostream>
#include <iterator>
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

// The bytes of a tensor with 8 bytes an element, which is enough for any type.
std::uint64_t bytes(nvinfer1::Dims const& shape) {
    std::uint64_t count = 8;
    for (int i = 0; i < shape.nbDims; ++i) {
        count *= shape.d[i] > 0 ? static_cast<std::uint64_t>(shape.d[i]) : 1;
    }
    return count;
}

}  // namespace

int main(int argc, char** argv) try {
    if (argc < 2) {
        std::cerr << "usage: " << argv[0] << " ENGINE [OPTIONS]\n";
        return 2;
    }
    std::ifstream file(argv[1], std::ios::binary);
    std::vector<char> const plan{std::istreambuf_iterator<char>(file), {}};

    Logger logger;
    // Declared before everything that uses it, so that it is destroyed last.
    trtalloc::Allocator memory{argc > 2 ? argv[2] : "limit=4GiB"};
    nvinfer1::IRuntime* const made = nvinfer1::createInferRuntime(logger);
    if (!trtalloc::created(made)) {
        std::cerr << "TensorRT made no runtime: is there a GPU, and a driver for it?\n";
        return 1;
    }
    std::unique_ptr<nvinfer1::IRuntime> const runtime{made};
    runtime->setGpuAllocator(trtalloc::tensorrt(memory));

    std::unique_ptr<nvinfer1::ICudaEngine> const engine{runtime->deserializeCudaEngine(plan.data(), plan.size())};
    if (!engine) {
        std::cerr << argv[1] << " is no engine for this TensorRT and this GPU\n";
        return 1;
    }
    std::unique_ptr<nvinfer1::IExecutionContext> const context{engine->createExecutionContext()};
    if (!context) {
        std::cerr << "no context: " << trtalloc_last_error() << '\n';
        return 1;
    }
    // Outputs whose size is known only at run time use the same pool.
    context->setTemporaryStorageAllocator(trtalloc::tensorrt(memory));

    // The inputs and outputs too, on the stream that uses them. nullptr stands for the application's cudaStream_t.
    cudaStream_t const stream = nullptr;
    std::vector<void*> tensors;
    for (int i = 0; i < engine->getNbIOTensors(); ++i) {
        char const* const name = engine->getIOTensorName(i);
        tensors.push_back(memory.allocate_async(bytes(engine->getTensorShape(name)), stream));
        context->setTensorAddress(name, tensors.back());
    }
    bool const queued = context->enqueueV3(stream);
    // Nothing waits here: memory freed on its stream is reused only after the stream's work.
    for (void* const tensor : tensors) {
        memory.deallocate_async(tensor, stream);
    }
    auto const stats = memory.stats();
    std::cout << (queued ? "queued" : "not queued") << "; peak in use " << (stats.allocated_peak >> 20)
              << " MiB, reserved " << (stats.reserved_peak >> 20) << " MiB\n";
    return queued ? 0 : 1;
} catch (trtalloc::Error const& error) {
    std::cerr << error.what() << '\n';
    return 1;
}
