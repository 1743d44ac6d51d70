// A program that opens many TensorRTs. Arguments: "one" (each is closed before the next is opened) or "all", and the
// libraries.
#include <NvInfer.h>
#include <dlfcn.h>

#include <cstdio>
#include <cstring>

namespace {

class Logger final : public nvinfer1::ILogger {
    void log(Severity, char const*) noexcept override {}
};

}  // namespace

int main(int argc, char** argv) {
    static Logger logger;
    for (int i = 2; i < argc; ++i) {
        void* const library = dlopen(argv[i], RTLD_NOW | RTLD_LOCAL);
        if (library == nullptr) {
            std::fprintf(stderr, "%s\n", dlerror());
            return 1;
        }
        auto const create =
            reinterpret_cast<void* (*)(void*, std::int32_t)>(dlsym(library, "createInferRuntime_INTERNAL"));
        auto* const runtime =
            static_cast<nvinfer1::IRuntime*>(create(&logger, static_cast<std::int32_t>(NV_TENSORRT_VERSION)));
        runtime->deserializeCudaEngine("", 1);
        delete runtime;
        if (std::strcmp(argv[1], "one") == 0) {
            dlclose(library);
            if (dlopen(argv[i], RTLD_NOW | RTLD_NOLOAD) != nullptr) {
                std::fprintf(stderr, "%s is still loaded\n", argv[i]);
                return 1;
            }
        }
    }
    return 0;
}
