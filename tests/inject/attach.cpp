// A program that gives the allocator to TensorRT's objects itself.
#include <NvInfer.h>
#include <trtalloc/tensorrt.hpp>

#include <cstdlib>

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

}  // namespace

int main() {
    Logger logger;
    trtalloc::Allocator memory{"driver=sim"};
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
