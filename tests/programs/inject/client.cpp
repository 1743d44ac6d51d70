// A program or plugin of TensorRT that does not use trtalloc. It creates a runtime and a builder and uses them. Then it
// prints trtalloc's counts, if trtalloc is in the process. With LOOK_UP it opens TensorRT itself.
#include <NvInfer.h>
#include <dlfcn.h>
#include <pthread.h>
#include <trtalloc/trtalloc.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "resident.h"

#define CHECK(condition)                                                            \
    do {                                                                            \
        if (!(condition)) {                                                         \
            std::fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition);    \
            std::exit(1);                                                           \
        }                                                                           \
    } while (false)

namespace {

class Logger final : public nvinfer1::ILogger {
    void log(Severity, char const*) noexcept override {}
};

Logger logger;

#ifdef LOOK_UP
using Create = void* (*)(void*, std::int32_t);

void* tensorrt;

Create find(char const* name) {
    void* const function = dlsym(tensorrt, name);
    CHECK(function != nullptr && dlerror() == nullptr);
    return reinterpret_cast<Create>(function);
}

void* make_runtime(std::int32_t version) { return find("createInferRuntime_INTERNAL")(&logger, version); }
void* make_builder(std::int32_t version) { return find("createInferBuilder_INTERNAL")(&logger, version); }
void open(char const* library) {
    tensorrt = dlopen(library, RTLD_NOW | RTLD_LOCAL);
    CHECK(tensorrt != nullptr);
}
#else
void* make_runtime(std::int32_t version) { return createInferRuntime_INTERNAL(&logger, version); }
void* make_builder(std::int32_t version) { return createInferBuilder_INTERNAL(&logger, version); }
void open(char const*) {}
#endif

// "version=N": the version that the program passes as the one it was compiled with.
std::int32_t version(std::string const& what) {
    return what.rfind("version=", 0) == 0 ? std::atoi(what.c_str() + 8) : static_cast<std::int32_t>(NV_TENSORRT_VERSION);
}

void objects(std::string const& what) {
    auto* runtime = static_cast<nvinfer1::IRuntime*>(make_runtime(version(what)));
    auto* builder = static_cast<nvinfer1::IBuilder*>(make_builder(version(what)));
    if (what == "none") {
        std::printf("%p %p\n", static_cast<void*>(runtime), static_cast<void*>(builder));
        return;
    }
    CHECK(runtime != nullptr && builder != nullptr);
    if (what == "own") {
        runtime->setGpuAllocator(nullptr);
        builder->setGpuAllocator(nullptr);
    }
    CHECK(runtime->deserializeCudaEngine("", 1) == nullptr);
    builder->reset();
    delete builder;
    delete runtime;
}

// "loop=N": N runtimes, one after another. The first 64 and every 257th are used, since the stand-in writes to its memory and prints a line.
void loop(long count) {
    std::int64_t const grown = growth(count, [](long number) {
        auto* runtime = static_cast<nvinfer1::IRuntime*>(make_runtime(NV_TENSORRT_VERSION));
        CHECK(runtime != nullptr);
        if (number < 64 || number % 257 == 0) {
            CHECK(runtime->deserializeCudaEngine("", 1) == nullptr);
        }
        delete runtime;
    });
    std::fprintf(stderr, "%ld runtimes, %lld bytes more\n", count, static_cast<long long>(grown));
}

void counted() {
    void* const library = dlopen("libtrtalloc.so.0", RTLD_NOW | RTLD_NOLOAD);
    if (library == nullptr) {
        std::printf("no trtalloc\n");
        return;
    }
    auto const get = reinterpret_cast<decltype(&trtalloc_stats_get)>(dlsym(library, "trtalloc_stats_get"));
    auto const process = reinterpret_cast<decltype(&trtalloc_default)>(dlsym(library, "trtalloc_default"));
    CHECK(get != nullptr && process != nullptr);
    trtalloc_stats stats;
    if (get(process(), -1, &stats, sizeof stats) != TRTALLOC_STATUS_OK) {
        std::printf("no figures\n");
        return;
    }
    std::printf("%d allocations, %d resizes, %d frees, %d bytes left\n", static_cast<int>(stats.allocations),
                static_cast<int>(stats.reallocations), static_cast<int>(stats.frees), static_cast<int>(stats.allocated));
}

}  // namespace

extern "C" __attribute__((visibility("default"))) int client(char const* library, char const* what) {
    open(library);
    if (std::string("threads") == what) {
        std::vector<std::thread> threads;
        for (int i = 0; i < 8; ++i) {
            threads.emplace_back([] {
                for (int j = 0; j < 20; ++j) {
                    objects("");
                }
            });
        }
        for (auto& thread : threads) {
            thread.join();
        }
    } else if (std::string("small") == what) {
        pthread_attr_t small;
        pthread_t thread;
        CHECK(pthread_attr_init(&small) == 0 && pthread_attr_setstacksize(&small, 128 * 1024) == 0);
        auto const run = [](void*) -> void* { return objects(""), nullptr; };
        CHECK(pthread_create(&thread, &small, run, nullptr) == 0 && pthread_join(thread, nullptr) == 0);
    } else if (std::strncmp(what, "loop=", 5) == 0) {
        loop(std::atol(what + 5));
    } else {
        objects(what);
    }
    counted();
    return 0;
}
