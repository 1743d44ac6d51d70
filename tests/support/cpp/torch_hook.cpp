// PyTorch's side of a request that cannot be met: the hook throws, by this program's C++ runtime, through frames that are
// not C++, on several threads at once; what was thrown is an ordinary exception here. With C10 this program has a libc10, and
// what is thrown is of its class.
#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <functional>
#include <stdexcept>
#include <string>
#include <thread>
#include <typeinfo>
#include <vector>

#ifdef C10
#include "c10.h"
using Expected = c10::OutOfMemoryError;
#else
using Expected = std::runtime_error;
#endif

#define CHECK(condition)                                                        \
    do {                                                                        \
        if (!(condition)) {                                                     \
            std::fprintf(stderr, "line %d: %s\n", __LINE__, #condition);        \
            std::abort();                                                       \
        }                                                                       \
    } while (false)

namespace {

using Malloc = void* (*)(std::size_t, int, void*);

struct Counted {
    explicit Counted(int& count) : count_(count) { ++count_; }
    ~Counted() { --count_; }
    int& count_;
};

void attempts(std::function<void*(std::size_t, int, void*)> const& allocate) {
    for (int round = 0; round < 50; ++round) {
        int alive = 0;
        std::string text;
        try {
            Counted const counted(alive);
            (void)allocate(std::size_t{1} << 40, 0, nullptr);
            CHECK(!"it returned");
        } catch (Expected const& error) {
            text = error.what();
            CHECK(typeid(error) == typeid(Expected));
            CHECK(dynamic_cast<Expected const*>(static_cast<std::exception const*>(&error)) == &error);
#ifdef C10
            // A copy is as good.
            CHECK(std::string(c10::Error(error).what_without_backtrace()) == text);
#endif
        } catch (std::exception const& error) {
            std::fprintf(stderr, "another exception: %s\n", error.what());
            CHECK(false);
        }
        CHECK(alive == 0);
        CHECK(text.rfind("CUDA out of memory. Tried to allocate 1024.00 GiB. GPU 0 has a total capacity of ", 0) == 0);
        CHECK(text.find(" is free. trtalloc: out of memory: ") != std::string::npos);
        CHECK(std::uncaught_exceptions() == 0);
        CHECK(std::current_exception() == nullptr);
    }
}

} // namespace

int main(int count, char** arguments) {
    CHECK(count == 2);
    void* const library = dlopen(arguments[1], RTLD_NOW | RTLD_LOCAL);
    CHECK(library != nullptr);
    auto const hook = reinterpret_cast<Malloc>(dlsym(library, "trtalloc_torch_malloc_or_throw"));
    CHECK(hook != nullptr);
    CHECK(hook(1 << 20, 0, nullptr) != nullptr);
    CHECK(hook(0, 0, nullptr) == nullptr);
    std::vector<std::thread> threads;
    for (int thread = 0; thread < 4; ++thread) {
        threads.emplace_back(attempts, hook);
    }
    for (std::thread& thread : threads) {
        thread.join();
    }
    CHECK(hook(1 << 20, 0, nullptr) != nullptr);
#ifdef C10
    CHECK(c10::alive == 0);
    // What is no lack of memory is no error of that class.
    try {
        (void)hook(1 << 20, 63, nullptr);
        CHECK(!"it returned");
    } catch (c10::Error const&) {
        CHECK(!"it is no lack of memory");
    } catch (std::runtime_error const& error) {
        CHECK(std::string(error.what()).rfind("trtalloc: ", 0) == 0);
    }
#endif
}
