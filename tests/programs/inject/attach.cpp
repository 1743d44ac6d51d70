// A program that gives the allocator to TensorRT's objects itself. With a number as argument it creates so many runtimes, one
// after another, each with one of 20 names.
#include <NvInfer.h>
#include <trtalloc/tensorrt.hpp>

#include <cstdlib>
#include <string>

#include "resident.h"

namespace {

class Logger final : public nvinfer1::ILogger {
    void log(Severity, char const*) noexcept override {}
};

// Has the same setter as an IExecutionContext.
struct Context {
    bool takes;
    nvinfer1::IGpuAllocator* given;

    bool setTemporaryStorageAllocator(nvinfer1::IGpuAllocator* allocator) noexcept {
        given = allocator;
        return takes;
    }
};

bool refuses(trtalloc::Allocator const& memory) {
    Context context{false, nullptr};
    try {
        trtalloc::attach(context, memory);
    } catch (trtalloc::Error const& error) {
        return error.status() == TRTALLOC_STATUS_UNSUPPORTED;
    }
    return false;
}

#if NV_TENSORRT_MAJOR != 8 && NV_TENSORRT_MAJOR != 9
// It compiles for NVIDIA's own class; creating an object of it needs a GPU.
[[maybe_unused]] void (*const of_a_context)(nvinfer1::IExecutionContext&, trtalloc_allocator*) = &trtalloc::attach;
#endif

// Every 257th runtime is used, since the stand-in writes to its memory and prints a line.
bool loop(Logger& logger, trtalloc::Allocator const& memory, long count) {
    std::int64_t const grown = growth(count, [&](long number) {
        auto* runtime = nvinfer1::createInferRuntime(logger);
        std::string const name = "model " + std::to_string(number % 20);
        trtalloc::attach(*runtime, memory, name.c_str());
        if (number % 257 == 0) {
            runtime->deserializeCudaEngine("", 1);
        }
        delete runtime;
    });
    std::fprintf(stderr, "%ld runtimes, %lld bytes more\n", count, static_cast<long long>(grown));
    trtalloc_tag_stats figures{};
    trtalloc::check(trtalloc_tag_stats_get(memory.get(), -1, "model 0", &figures, sizeof figures));
    return figures.allocated == 0 && figures.allocations > 0 && figures.allocations == figures.frees;
}

}  // namespace

int main(int argc, char** argv) {
    Logger logger;
    trtalloc::Allocator memory{"driver=sim"};
    if (argc > 1) {
        return loop(logger, memory, std::atol(argv[1])) ? EXIT_SUCCESS : EXIT_FAILURE;
    }
    auto* runtime = nvinfer1::createInferRuntime(logger);
    auto* builder = nvinfer1::createInferBuilder(logger);
    trtalloc::attach(*runtime, memory);
    trtalloc::attach(*builder, memory.get());
    runtime->deserializeCudaEngine("", 1);
    builder->reset();
    Context context{true, nullptr};
    trtalloc::attach(context, memory);
    bool const good = context.given == trtalloc::tensorrt(memory) && refuses(memory) && memory.stats().allocations == 4;
    delete builder;
    delete runtime;
    return good ? EXIT_SUCCESS : EXIT_FAILURE;
}
