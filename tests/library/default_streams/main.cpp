// What one thread frees on the default stream while its work is pending, and another thread then gets on the default stream. The
// doors of a source file with per-thread default streams, and of one without, are in one program.
#include "doors.h"

#include <dlfcn.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <thread>

#define CHECK(condition)                                                             \
    do {                                                                             \
        if (!(condition)) {                                                          \
            std::fprintf(stderr, "line %d: %s\n", __LINE__, #condition);             \
            std::exit(1);                                                            \
        }                                                                            \
    } while (false)

namespace {

void* driver;

template <class... Arguments>
int result_of(char const* name, Arguments... arguments) {
    auto const function = reinterpret_cast<int (*)(Arguments...)>(dlsym(driver, name));
    CHECK(function != nullptr);
    return function(arguments...);
}

template <class... Arguments>
void call(char const* name, Arguments... arguments) {
    int const result = result_of(name, arguments...);
    if (result != 0) {
        std::fprintf(stderr, "%s: %d\n", name, result);
        std::exit(1);
    }
}

void* context;

void enter() { call("cuCtxSetCurrent", context); }

std::atomic<bool> done;

void wait_until_done(void*) {
    while (!done) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
}

// Work on CU_STREAM_LEGACY or CU_STREAM_PER_THREAD that lasts longer than what is checked beside it.
template <std::uintptr_t stream>
void work() {
    // The second simulated driver's host functions do not hold up their stream.
    if (dlsym(driver, "cudasim_busy") != nullptr) {
        call("cudasim_busy", reinterpret_cast<void*>(stream), 20'000'000'000ULL);
        return;
    }
    call("cuLaunchHostFunc", reinterpret_cast<void*>(stream), &wait_until_done, static_cast<void*>(nullptr));
}

// Whether a second thread gets the block that the first one freed, while the first one's work is pending.
bool shares(Doors const& door, void (*pending)()) {
    trtalloc::Allocator memory{"wait_ms=0"};
    void* freed = nullptr;
    void* got = nullptr;
    done = false;
    std::atomic<bool> end{false};
    // The first thread, and so its stream, exists as long as the second one.
    std::atomic<bool> queued{false};
    std::thread first([&] {
        enter();
        freed = door.use(memory, pending);
        queued = true;
        while (!end) {
            std::this_thread::yield();
        }
    });
    std::thread second([&] {
        enter();
        while (!queued) {
            std::this_thread::yield();
        }
        got = door.get(memory);
    });
    second.join();
    done = end = true;
    first.join();
    CHECK(freed != nullptr && got != nullptr);
    return freed == got;
}

// Whether another thread may reuse a block at once, which a Block of a thread's default stream frees on that other thread.
bool freed_elsewhere() {
    trtalloc::Allocator memory{"wait_ms=0"};
    std::optional<trtalloc::Block> block;
    std::atomic<bool> end{false};
    std::atomic<bool> queued{false};
    done = false;
    std::thread first([&] {
        enter();
        block = memory.block_async(3 << 20, reinterpret_cast<void*>(2));
        work<2>();
        queued = true;
        while (!end) {
            std::this_thread::yield();
        }
    });
    bool same = true;
    std::thread second([&] {
        enter();
        while (!queued) {
            std::this_thread::yield();
        }
        // A stream may have what it freed at once, where the allocator knows it, and has much other memory.
        trtalloc::Block const large = memory.block_async(100 << 20, reinterpret_cast<void*>(2));
        void* const address = block->get();
        CHECK(block->reset());
        same = memory.allocate_async(3 << 20, reinterpret_cast<void*>(2)) == address;
    });
    second.join();
    done = end = true;
    first.join();
    return same;
}

// Whether a consumer's stream waits for the work of a block of another thread's default stream that is exported to it.
bool consumer_waits() {
    std::atomic<bool> end{false};
    std::atomic<bool> queued{false};
    trtalloc_dlpack_block* block = nullptr;
    done = false;
    std::thread first([&] {
        enter();
        block = trtalloc_dlpack_allocate(3 << 20, 0, 0, -1, reinterpret_cast<void*>(2));
        work<2>();
        queued = true;
        while (!end) {
            std::this_thread::yield();
        }
    });
    bool waits = false;
    std::thread second([&] {
        enter();
        while (!queued) {
            std::this_thread::yield();
        }
        void* consumer = nullptr;
        // CU_STREAM_NON_BLOCKING.
        call("cuStreamCreate", &consumer, 1U);
        std::int64_t const extent = 16;
        CHECK(trtalloc_dlpack_export(block, 1, 8, &extent, 1, consumer, true) != nullptr);
        // Long enough for a stream that waits for nothing. CUDA_ERROR_NOT_READY.
        std::this_thread::sleep_for(std::chrono::milliseconds(50));
        waits = result_of("cuStreamQuery", consumer) == 600;
    });
    second.join();
    done = end = true;
    first.join();
    return waits;
}

}  // namespace

int main() {
    driver = dlopen("libcuda.so.1", RTLD_NOW);
    CHECK(driver != nullptr);
    call("cuInit", 0U);
    call("cuDevicePrimaryCtxRetain", &context, 0);
    // Before there is other work that a stream would wait for.
    CHECK(consumer_waits());
    for (int door = 0; door < doors; ++door) {
        std::fprintf(stderr, "door %d\n", door);
        CHECK(!shares(per_thread_doors[door], work<2>));
        // The legacy stream is one for all threads, and runs its work in order.
        CHECK(shares(legacy_doors[door], work<1>));
    }
    CHECK(!freed_elsewhere());
}
