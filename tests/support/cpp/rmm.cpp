// RMM's own containers and resources over trtalloc, on the simulated device.
#include <trtalloc/rmm.hpp>

#include <cstdint>
#include <cstdio>
#include <cstdlib>

#define CHECK(condition)                                                        \
    do {                                                                        \
        if (!(condition)) {                                                     \
            std::fprintf(stderr, "line %d: %s\n", __LINE__, #condition);        \
            std::abort();                                                       \
        }                                                                       \
    } while (false)

static std::uint64_t allocated() {
    trtalloc_stats stats{};
    CHECK(trtalloc_stats_get(trtalloc_default(), 0, &stats, sizeof stats) == TRTALLOC_STATUS_OK);
    return stats.allocated;
}

int main() {
    auto resource = trtalloc::rmm_resource();
    rmm::cuda_stream_view const stream{};
    void* const memory = resource.allocate(stream, 10'000);
    CHECK(memory != nullptr && reinterpret_cast<std::uintptr_t>(memory) % 256 == 0);
    CHECK(allocated() == 10'240);
    resource.deallocate(stream, memory, 10'000);
    CHECK(allocated() == 0);
    // The same stream has it again at once.
    void* const again = resource.allocate(stream, 10'000);
    CHECK(again == memory);
    resource.deallocate(stream, again, 10'000);
    try {
        (void)resource.allocate(stream, std::size_t{1} << 40);
        CHECK(!"it returned");
    } catch (rmm::out_of_memory const& error) {
        std::fprintf(stderr, "%s\n", error.what());
    }
    trtalloc_allocator* closed = nullptr;
    CHECK(trtalloc_create("driver=sim", &closed) == TRTALLOC_STATUS_OK);
    trtalloc_destroy(closed);
    auto nothing = trtalloc::rmm_resource(closed);
    try {
        (void)nothing.allocate(stream, 512);
        CHECK(!"it returned");
    } catch (rmm::out_of_memory const&) {
        CHECK(!"it is not for want of memory");
    } catch (rmm::bad_alloc const&) {
    }
}
