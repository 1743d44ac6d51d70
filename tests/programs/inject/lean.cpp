// A program of TensorRT's lean runtime that does not use trtalloc. It prints the result of creating an IRuntime, which
// without a driver is an invalid address.
#include <NvInferRuntime.h>
#include <dlfcn.h>

#include <cstdio>

namespace {

class Logger final : public nvinfer1::ILogger {
    void log(Severity, char const*) noexcept override {}
};

}  // namespace

int main(int, [[maybe_unused]] char** argv) {
    static Logger logger;
#ifdef LOOK_UP
    void* const library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
    auto const create = reinterpret_cast<void* (*)(void*, std::int32_t)>(dlsym(library, "createInferRuntime_INTERNAL"));
    void* const runtime = create(&logger, NV_TENSORRT_VERSION);
#else
    void* const runtime = createInferRuntime_INTERNAL(&logger, NV_TENSORRT_VERSION);
#endif
    // The address of a real object differs in each run.
    bool const object = reinterpret_cast<std::uintptr_t>(runtime) >= 4096;
    if (object) {
        std::printf("runtime of its own\n");
        delete static_cast<nvinfer1::IRuntime*>(runtime);
    } else {
        std::printf("runtime %p\n", runtime);
    }
    return 0;
}
