// A TensorRT for tests: it creates objects that a program uses by NVIDIA's own inline methods, and uses their allocator
// as TensorRT does. For each object that is used it prints a line: "attached" where it got an allocator, "own" where
// not.
//
// STANDIN in the environment is a number that createInfer* returns in place of an object, or "hollow" for objects
// without an implementation. STANDIN_VERSION is the version that the library reports.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "slots.h"

#define CHECK(condition)                                                            \
    do {                                                                            \
        if (!(condition)) {                                                         \
            std::fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition);    \
            std::abort();                                                           \
        }                                                                           \
    } while (false)

namespace {

using nvinfer1::IGpuAllocator;

constexpr std::size_t mib = 1U << 20;

[[noreturn]] void unexpected() {
    std::fprintf(stderr, "%s: a virtual function was called that must not be called\n", STANDIN_NAME);
    std::abort();
}

bool filled(unsigned char const* bytes, std::size_t size, unsigned char value) {
    for (std::size_t i = 0; i < size; ++i) {
        if (bytes[i] != value) {
            return false;
        }
    }
    return true;
}

// Does everything that TensorRT does with an allocator. The memory is the simulated device's and can be written to.
void live(IGpuAllocator& allocator) {
    auto const resizable = 1U << static_cast<unsigned>(nvinfer1::AllocatorFlag::kRESIZABLE);
    void* block = allocator.allocate(mib, 256, resizable);
    CHECK(block != nullptr);
    std::memset(block, 7, mib);
    block = allocator.reallocate(block, 256, 3 * mib);
    CHECK(block != nullptr && filled(static_cast<unsigned char*>(block), mib, 7));
    std::memset(block, 8, 3 * mib);
#if NV_TENSORRT_MAJOR == 8 || NV_TENSORRT_MAJOR == 9
    allocator.free(block);
    block = allocator.allocate(mib, 256, 0);
    CHECK(block != nullptr);
    CHECK(allocator.deallocate(block));
#else
    CHECK(allocator.deallocate(block));
    block = allocator.allocateAsync(mib, 256, 0, nullptr);
    CHECK(block != nullptr);
    CHECK(allocator.deallocateAsync(block, nullptr));
#endif
}

// An object's implementation, which its inline methods call through the table.
struct Implementation {
    void* const* table;
    char const* what;
    IGpuAllocator* allocator;
};

void set(Implementation* self, IGpuAllocator* allocator) { self->allocator = allocator; }

void work(Implementation* self) {
    if (self->allocator != nullptr) {
        live(*self->allocator);
    }
    std::printf("%s %s: %s\n", STANDIN_NAME, self->what, self->allocator == nullptr ? "own" : "attached");
    std::fflush(stdout);
}

nvinfer1::ICudaEngine* deserialize(Implementation* self, void const*, std::size_t) {
    work(self);
    return nullptr;
}

struct Table {
    void* slots[64];

    Table() {
        for (auto& slot : slots) {
            slot = reinterpret_cast<void*>(&unexpected);
        }
    }
};

// `deserializeCudaEngine` has overloads, and a third argument in TensorRT 8 and 9.
template <class Runtime>
std::size_t slot_of_deserialize() {
    using nvinfer1::ICudaEngine;
#if NV_TENSORRT_MAJOR == 8 || NV_TENSORRT_MAJOR == 9
    ICudaEngine* (Runtime::*function)(void const*, std::size_t, void*) noexcept = &Runtime::deserializeCudaEngine;
#else
    ICudaEngine* (Runtime::*function)(void const*, std::size_t) noexcept = &Runtime::deserializeCudaEngine;
#endif
    return slot_of(function);
}

struct RuntimeTable : Table {
    RuntimeTable() {
        using nvinfer1::apiv::VRuntime;
        slots[slot_of(&VRuntime::setGpuAllocator)] = reinterpret_cast<void*>(&set);
        slots[slot_of_deserialize<VRuntime>()] = reinterpret_cast<void*>(&deserialize);
    }
};

struct BuilderTable : Table {
    BuilderTable() {
        using nvinfer1::apiv::VBuilder;
        slots[slot_of(&VBuilder::setGpuAllocator)] = reinterpret_cast<void*>(&set);
        slots[slot_of(&VBuilder::reset)] = reinterpret_cast<void*>(&work);
    }
};

struct Runtime : nvinfer1::IRuntime {
    Implementation implementation;

    Runtime() : implementation{nullptr, "runtime", nullptr} {
        static RuntimeTable const table;
        implementation.table = table.slots;
        mImpl = reinterpret_cast<nvinfer1::apiv::VRuntime*>(&implementation);
    }
};

struct Builder : nvinfer1::IBuilder {
    Implementation implementation;

    Builder() : implementation{nullptr, "builder", nullptr} {
        static BuilderTable const table;
        implementation.table = table.slots;
        mImpl = reinterpret_cast<nvinfer1::apiv::VBuilder*>(&implementation);
    }
};

template <class Object>
void* create(void* logger) {
    using nvinfer1::ILogger;
    static_cast<ILogger*>(logger)->log(ILogger::Severity::kINFO, "created");
    char const* instead = std::getenv("STANDIN");
    std::string const what = instead == nullptr ? "" : instead;
    if (what == "hollow") {
        static void* hollow[] = {hollow, nullptr};
        return hollow;
    }
    if (!what.empty()) {
        return reinterpret_cast<void*>(std::strtoull(instead, nullptr, 0));
    }
    // Returns its base, because the inline function casts the result to that.
    return static_cast<nvinfer1::INoCopy*>(new Object);
}

}  // namespace

extern "C" {

#define EXPORT __attribute__((visibility("default")))

EXPORT void* createInferRuntime_INTERNAL(void* logger, std::int32_t) noexcept { return create<Runtime>(logger); }

EXPORT void* createInferBuilder_INTERNAL(void* logger, std::int32_t) noexcept { return create<Builder>(logger); }

EXPORT void* createInferRefitter_INTERNAL(void* engine, void* logger, std::int32_t version) noexcept {
    std::printf("%s refitter: %p %p %d\n", STANDIN_NAME, engine, logger, static_cast<int>(version));
    std::fflush(stdout);
    return engine;
}

// The real parameters are not published. These are more than there are registers.
EXPORT double createLeanRuntime(long a, long b, long c, long d, long e, long f, long g, long h, long i, double r, double s,
                                double t, double u, double v, double w, double x, double y, double z) {
    std::printf("%s lean: %ld%ld%ld%ld%ld%ld%ld%ld%ld\n", STANDIN_NAME, a, b, c, d, e, f, g, h, i);
    std::fflush(stdout);
    return r + 2 * s + 3 * t + 4 * u + 5 * v + 6 * w + 7 * x + 8 * y + 9 * z;
}

EXPORT std::int32_t getInferLibVersion() noexcept {
    char const* instead = std::getenv("STANDIN_VERSION");
    return instead == nullptr ? static_cast<std::int32_t>(NV_TENSORRT_VERSION) : std::atoi(instead);
}

}
