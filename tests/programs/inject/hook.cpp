// Another dlsym, in a program or in a preloaded library: it reports one name and forwards every call.
#include <dlfcn.h>

#include <cstdio>
#include <cstring>
#include <initializer_list>

extern "C" __attribute__((visibility("default"))) void* dlsym(void* library, char const* name) noexcept {
    using Function = void* (*)(void*, char const*);
    static Function real = nullptr;
    for (char const* version : {"GLIBC_2.34", "GLIBC_2.17", "GLIBC_2.2.5"}) {
        if (real == nullptr) {
            real = reinterpret_cast<Function>(dlvsym(RTLD_NEXT, "dlsym", version));
        }
    }
    if (std::strcmp(name, "createInferRuntime_INTERNAL") == 0) {
        std::printf("another dlsym\n");
        std::fflush(stdout);
    }
    return real(library, name);
}
