// Another malloc, to be preloaded. Its first call finds the real malloc by dlsym, and until then it cannot allocate.
#include <dlfcn.h>
#include <unistd.h>

#include <cstddef>

namespace {

bool finding = false;
bool called = false;

void say(char const* text, std::size_t size) {
    if (write(2, text, size) < 0) {
        // Some programs close stdout before they end.
    }
}

template <class Function>
Function find(char const* name) {
    if (finding) {
        char const text[] = "dlsym allocates\n";
        say(text, sizeof text - 1);
        _exit(1);
    }
    finding = true;
    void* const found = dlsym(RTLD_NEXT, name);
    finding = false;
    return reinterpret_cast<Function>(found);
}

struct AtEnd {
    ~AtEnd() {
        char const text[] = "malloc was called\n";
        if (called) {
            say(text, sizeof text - 1);
        }
    }
} at_end;

}  // namespace

extern "C" {

void* malloc(std::size_t size) {
    static void* (*real)(std::size_t) = nullptr;
    if (real == nullptr) {
        real = find<void* (*)(std::size_t)>("malloc");
    }
    called = true;
    return real(size);
}

void* calloc(std::size_t count, std::size_t size) {
    static void* (*real)(std::size_t, std::size_t) = nullptr;
    if (real == nullptr) {
        real = find<void* (*)(std::size_t, std::size_t)>("calloc");
    }
    return real(count, size);
}

void free(void* block) {
    static void (*real)(void*) = nullptr;
    if (real == nullptr) {
        real = find<void (*)(void*)>("free");
    }
    real(block);
}

}
