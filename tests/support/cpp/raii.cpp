// trtalloc.hpp over the simulated device.
#include <trtalloc/trtalloc.hpp>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string_view>
#include <utility>

#define CHECK(condition)                                                                 \
    do {                                                                                 \
        if (!(condition)) {                                                              \
            std::fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition);         \
            std::exit(1);                                                                \
        }                                                                                \
    } while (false)

int main() {
    try {
        trtalloc::Allocator none{"driver=none"};
        CHECK(false);
    } catch (trtalloc::Error const& error) {
        CHECK(error.status() == TRTALLOC_STATUS_INVALID_ARGUMENT);
        CHECK(std::string_view(error.what()).find("`none`") != std::string_view::npos);
    }

    trtalloc::Allocator a{"driver=sim,limit=1GiB"};
    void* block = a.allocate(1U << 20, 512, TRTALLOC_RESIZABLE);
    CHECK(block != nullptr);
    block = a.reallocate(block, 3U << 20);
    CHECK(block != nullptr && a.stats().reallocations == 1);
    void* queued = a.allocate_async(100, nullptr);
    CHECK(queued != nullptr);
    a.record_stream(queued, nullptr);
    CHECK(a.deallocate_async(queued, nullptr));
    a.stream_release(nullptr);

    {
        trtalloc::Block empty;
        CHECK(!empty && empty.get() == nullptr && empty.size() == 0 && empty.reset());
        trtalloc::Block first = a.block(1000, 256);
        trtalloc::Block second = a.block_async(2000, nullptr);
        CHECK(first && second && first.size() == 1000 && second.size() == 2000);
        auto const allocations = a.stats().allocations;
        void* const address = first.get();
        empty = std::move(first);
        CHECK(!first && empty.get() == address);
        empty.swap(second);
        CHECK(second.get() == address && empty.size() == 2000);
        CHECK(second.reset() && !second && second.size() == 0 && second.reset());
        CHECK(a.deallocate_async(empty.release(), nullptr) && !empty && empty.size() == 0);
        CHECK(a.stats().allocations == allocations);
    }
    // What is out is `block` alone.
    CHECK(a.stats().allocations == a.stats().frees + 1);
    try {
        trtalloc::Block never = a.block(std::uint64_t{1} << 40);
        CHECK(false);
    } catch (trtalloc::Error const& error) {
        CHECK(error.status() == TRTALLOC_STATUS_OUT_OF_MEMORY);
    }
    try {
        trtalloc::Block never = a.block(1000, 3);
        CHECK(false);
    } catch (trtalloc::Error const& error) {
        CHECK(error.status() == TRTALLOC_STATUS_INVALID_ARGUMENT);
    }
    try {
        // Without a driver nothing is known of streams.
        static char memory[1U << 20];
        trtalloc::Allocator over{memory, sizeof memory, "driver=none"};
        trtalloc::Block never = over.block_async(1000, nullptr);
        CHECK(false);
    } catch (trtalloc::Error const& error) {
        CHECK(error.status() == TRTALLOC_STATUS_UNSUPPORTED);
    }
    trtalloc::Block survivor;
    {
        trtalloc::Allocator gone{"driver=sim"};
        survivor = gone.block_async(64, nullptr);
    }
    CHECK(survivor.reset());
    void* const chosen = a.allocate_on(0, 64, nullptr);
    CHECK(chosen != nullptr && a.deallocate(chosen));
    try {
        a.snapshot("never.txt");
        CHECK(false);
    } catch (trtalloc::Error const& error) {
        CHECK(error.status() == TRTALLOC_STATUS_INVALID_ARGUMENT);
    }

    trtalloc::Allocator b{std::move(a)};
    CHECK(a.get() == nullptr && a.allocate(1) == nullptr);
    CHECK(b.deallocate(block));
    CHECK(b.stats().allocated == 0);
    b.reset_peaks();
    CHECK(b.stats().allocated_peak == 0);
    b.set_limit(0);
    CHECK(b.stats().limit == 0);
    CHECK(b.trim() > 0 && b.stats().reserved == 0);
    try {
        b.record_stream(&block, nullptr);
        CHECK(false);
    } catch (trtalloc::Error const& error) {
        CHECK(error.status() == TRTALLOC_STATUS_INVALID_ARGUMENT);
    }
    a = std::move(b);
    CHECK(a.get() != nullptr && b.get() == nullptr);
    return 0;
}
