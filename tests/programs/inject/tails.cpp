// A program without TensorRT whose plugins create objects for it. Arguments: pairs of a plugin and a version.
#include <dlfcn.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>

namespace {

// ILogger in TensorRT 8 to 10: `log` comes first.
struct Logger {
    virtual void log(int, char const*) noexcept {}
};

}  // namespace

int main(int argc, char** argv) {
    static Logger logger;
    for (int i = 1; i + 1 < argc; i += 2) {
        void* const plugin = dlopen(argv[i], RTLD_NOW | RTLD_LOCAL);
        if (plugin == nullptr) {
            std::fprintf(stderr, "%s\n", dlerror());
            return 1;
        }
    }
    for (int i = 1; i + 1 < argc; i += 2) {
        void* const plugin = dlopen(argv[i], RTLD_NOW | RTLD_NOLOAD);
        auto const make = reinterpret_cast<void* (*)(void*, std::int32_t)>(dlsym(plugin, "make"));
        std::printf("%s\n", make(&logger, std::atoi(argv[i + 1])) == nullptr ? "none" : "made");
    }
    return 0;
}
