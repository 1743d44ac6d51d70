// A shared library that uses tensorrt.hpp with one TensorRT, for a process that has further ones with other TensorRTs. VERSION is
// the version that this library must get from the header, whichever library came first.
#include <NvInferRuntime.h>

#include <cstddef>
#include <cstdint>

// Whether the methods are those of TensorRT 10.1 and later: sizes as signed numbers, memory with its size.
#define SIGNED_SIZES (VERSION > 100000 || (VERSION >= 10000 && VERSION < 20000))

namespace nvinfer1 {

// The same classes in each library, with the methods of its TensorRT. Each method leaves or reads what no other does.
class IRuntime {
public:
    void setGpuAllocator(IGpuAllocator* allocator) { allocator_ = allocator; }
    IGpuAllocator* allocator_ = nullptr;
};

class ICudaEngine {
public:
#if SIGNED_SIZES
    std::int64_t getDeviceMemorySizeV2() const { return static_cast<std::int64_t>(newer_); }
#else
    std::size_t getDeviceMemorySize() const { return older_; }
#endif
    std::uint64_t older_ = 1000;
    std::uint64_t newer_ = 2000;
};

class IExecutionContext {
public:
#if SIGNED_SIZES
    std::size_t updateDeviceMemorySizeForShapes() { return engine_.newer_; }
    void setDeviceMemoryV2(void* memory, std::int64_t) { newer_ = memory; }
#else
    ICudaEngine const& getEngine() const { return engine_; }
    void setDeviceMemory(void* memory) { older_ = memory; }
#endif
    ICudaEngine engine_;
    void* older_ = nullptr;
    void* newer_ = nullptr;
};

}  // namespace nvinfer1

#include <trtalloc/tensorrt.hpp>

#include <cstdio>

// Returns the line of the first condition that does not hold, or 0.
#define CHECK(condition)                                                                                      \
    do {                                                                                                      \
        if (!(condition)) {                                                                                   \
            std::fprintf(stderr, "%d: %s: %s\n", VERSION, #condition, trtalloc_last_error());                 \
            return __LINE__;                                                                                  \
        }                                                                                                     \
    } while (false)

namespace {

int interfaces(trtalloc::Allocator const& memory) {
    CHECK(trtalloc::tensorrt_version == VERSION);
    CHECK(trtalloc::tensorrt(memory) == trtalloc_tensorrt_allocator(memory.get(), VERSION));
    void* const named = trtalloc_tensorrt_allocator_named(memory.get(), VERSION, "resnet");
    CHECK(trtalloc::tensorrt(memory, "resnet") == named);
    nvinfer1::IRuntime runtime;
    trtalloc::attach(runtime, memory, "resnet");
    CHECK(runtime.allocator_ == named);
    return 0;
}

int sizes(trtalloc::Allocator const& memory) {
    nvinfer1::IExecutionContext context;
    trtalloc::SharedScratch scratch{memory};
    { auto const lease = scratch.lend(context, nullptr); }
    CHECK((SIGNED_SIZES ? context.newer_ : context.older_) != nullptr);
    CHECK((SIGNED_SIZES ? context.older_ : context.newer_) == nullptr);
    CHECK(scratch.size() == (SIGNED_SIZES ? 2000 : 1000));
    trtalloc::Fit const fit = trtalloc::fit(context.engine_, memory);
    CHECK(fit.per_context == (SIGNED_SIZES ? 2000 : 1000));
    return 0;
}

#if VERSION >= 8500
int outputs(trtalloc::Allocator const& memory) {
    trtalloc::Outputs outputs{memory};
    nvinfer1::IOutputAllocator& output = *outputs.get();
#if VERSION >= 10000
    void* const boxes = output.reallocateOutputAsync("boxes", nullptr, 3000, 256, nullptr);
#else
    void* const boxes = output.reallocateOutput("boxes", nullptr, 3000, 256);
#endif
    nvinfer1::Dims dims{};
    dims.nbDims = 2;
    dims.d[1] = 7;
    output.notifyShape("boxes", dims);
    trtalloc_output const found = outputs.at("boxes");
    CHECK(boxes != nullptr && found.memory == boxes && found.bytes == 3000 && found.rank == 2 && found.extents[1] == 7);
    return 0;
}
#else
int outputs(trtalloc::Allocator const&) { return 0; }
#endif

}  // namespace

extern "C" int generation_check();
extern "C" int generation_check() {
    trtalloc::Allocator const memory{"driver=sim,sim_memory=1GiB"};
    int line = interfaces(memory);
    line = line != 0 ? line : sizes(memory);
    return line != 0 ? line : outputs(memory);
}
