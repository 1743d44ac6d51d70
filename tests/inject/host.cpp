// A program that opens plugins, one behind the other. Arguments: "local" or "deep", the client's second argument, the plugins.
#include <dlfcn.h>

#include <cstdio>
#include <cstring>

int main(int argc, char** argv) {
    int const scope = std::strcmp(argv[1], "deep") == 0 ? RTLD_DEEPBIND : 0;
    for (int i = 3; i < argc; ++i) {
        void* const plugin = dlopen(argv[i], RTLD_NOW | RTLD_LOCAL | scope);
        if (plugin == nullptr) {
            std::fprintf(stderr, "%s\n", dlerror());
            return 1;
        }
        auto const client = reinterpret_cast<int (*)(char const*, char const*)>(dlsym(plugin, "client"));
        if (client == nullptr || client("", argv[2]) != 0) {
            return 1;
        }
    }
    return 0;
}
