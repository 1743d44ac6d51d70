// Shows where special handles of dlsym lead: from a program, and from a library that it opens (LIBRARY). Both define
// `known`, and so does the library that this one needs (NEEDED).
#include <dlfcn.h>

#include <cstdio>
#include <cstring>

#define EXPORT extern "C" __attribute__((visibility("default")))

EXPORT int known() { return 0; }

#ifndef NEEDED

namespace {

void say(char const* what, void* found) {
    Dl_info info{};
    char const* file = found != nullptr && dladdr(found, &info) != 0 ? std::strrchr(info.dli_fname, '/') : nullptr;
    char const* error = dlerror();
    std::printf("%s: %s %s\n", what, file == nullptr ? "none" : file + 1, error == nullptr ? "" : error);
}

}  // namespace

EXPORT void look(char const* from) {
    std::printf("%s\n", from);
    say("next known", dlsym(RTLD_NEXT, "known"));
    say("default known", dlsym(RTLD_DEFAULT, "known"));
    say("next malloc", dlsym(RTLD_NEXT, "malloc"));
    say("default unknown", dlsym(RTLD_DEFAULT, "unknown_name"));
    say("next unknown", dlsym(RTLD_NEXT, "unknown_name"));
    // Names that only begin like TensorRT's.
    say("default alike", dlsym(RTLD_DEFAULT, "createInferRuntime"));
    say("null alike", dlsym(nullptr, "createInfer"));
}

#ifndef LIBRARY
int main(int, char** argv) {
    look("program");
    void* const library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
        std::fprintf(stderr, "%s\n", dlerror());
        return 1;
    }
    say("handle known", dlsym(library, "known"));
    say("handle unknown", dlsym(library, "unknown_name"));
    reinterpret_cast<void (*)(char const*)>(dlsym(library, "look"))("library");
    return 0;
}
#endif

#endif
