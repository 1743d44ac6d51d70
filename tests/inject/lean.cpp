// A program of TensorRT's lean runtime that knows nothing of trtalloc. It writes what it is given for an IRuntime: without a
// driver, an address that is no object's.
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
    // A real object's address is another each time.
    bool const object = reinterpret_cast<std::uintptr_t>(runtime) >= 4096;
    if (object) {
        std::printf("runtime of its own\n");
        delete static_cast<nvinfer1::IRuntime*>(runtime);
    } else {
        std::printf("runtime %p\n", runtime);
    }
    return 0;
}
