// A program of TensorRT's lean runtime, linked with NVIDIA's library. Without a driver that gives an address which is no
// object's; with one, an IRuntime that takes our allocator.
#include <NvInferRuntime.h>
#include <trtalloc/tensorrt.hpp>

#include "check.h"
#include "logger.h"

int main() {
    Logger logger;
    CHECK(getInferLibVersion() / 100 == trtalloc::tensorrt_version / 100);
    auto* runtime = nvinfer1::createInferRuntime(logger);
    trtalloc::Allocator memory{"driver=sim"};
    auto* allocator = trtalloc::tensorrt(memory);
    if (trtalloc::created(runtime)) {
        runtime->setGpuAllocator(allocator);
        delete runtime;
    } else {
        CHECK(logger.errors > 0);
    }
    // The library has its own copies of the classes' type information; the adapter works beside it.
    void* block = allocator->allocateAsync(1U << 20, 256, 0, nullptr);
    CHECK(block != nullptr && allocator->deallocateAsync(block, nullptr));
    CHECK(memory.stats().allocations == 1 && memory.stats().allocated == 0);
    return 0;
}
