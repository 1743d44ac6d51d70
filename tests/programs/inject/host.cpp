// A program that opens plugins one after another. Arguments: "local" or "deep", the client's second argument, and the
// plugins. A plugin's name may be followed by a colon and the client's first argument.
#include <dlfcn.h>

#include <cstdio>
#include <cstring>
#include <string>

int main(int argc, char** argv) {
    int const scope = std::strcmp(argv[1], "deep") == 0 ? RTLD_DEEPBIND : 0;
    for (int i = 3; i < argc; ++i) {
        std::string const argument = argv[i];
        auto const colon = argument.find(':');
        void* const plugin = dlopen(argument.substr(0, colon).c_str(), RTLD_NOW | RTLD_LOCAL | scope);
        if (plugin == nullptr) {
            std::fprintf(stderr, "%s\n", dlerror());
            return 1;
        }
        auto const client = reinterpret_cast<int (*)(char const*, char const*)>(dlsym(plugin, "client"));
        std::string const library = colon == std::string::npos ? "" : argument.substr(colon + 1);
        if (client == nullptr || client(library.c_str(), argv[2]) != 0) {
            return 1;
        }
    }
    return 0;
}
