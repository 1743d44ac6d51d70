// RMM's callback resource over trtalloc, with every RMM, on the simulated device.
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

// The stream comes first in newer RMMs, and last in older ones.
template <class Resource, class Stream>
auto get(Resource& resource, Stream stream, std::size_t bytes, int)
    -> decltype(resource.allocate(stream, bytes, 256)) {
    return resource.allocate(stream, bytes, 256);
}
template <class Resource, class Stream>
auto get(Resource& resource, Stream stream, std::size_t bytes, long) -> decltype(resource.allocate(bytes, stream)) {
    return resource.allocate(bytes, stream);
}
template <class Resource, class Stream>
auto put(Resource& resource, Stream stream, void* memory, std::size_t bytes, int)
    -> decltype(resource.deallocate(stream, memory, bytes, 256)) {
    return resource.deallocate(stream, memory, bytes, 256);
}
template <class Resource, class Stream>
auto put(Resource& resource, Stream stream, void* memory, std::size_t bytes, long)
    -> decltype(resource.deallocate(memory, bytes, stream)) {
    return resource.deallocate(memory, bytes, stream);
}

int main() {
    auto resource = trtalloc::rmm_resource();
    trtalloc::rmm_stream_ref const stream{cudaStream_t{}};
#ifdef CUDA_API_PER_THREAD_DEFAULT_STREAM
    CHECK(trtalloc::rmm_stream(stream) == cudaStreamPerThread);
#else
    CHECK(trtalloc::rmm_stream(stream) == nullptr);
#endif
    void* const memory = get(resource, stream, 10'000, 0);
    CHECK(memory != nullptr && reinterpret_cast<std::uintptr_t>(memory) % 256 == 0);
    CHECK(allocated() == 10'240);
    put(resource, stream, memory, 10'000, 0);
    CHECK(allocated() == 0);
    // The same stream has it again at once.
    void* const again = get(resource, stream, 10'000, 0);
    CHECK(again == memory);
    put(resource, stream, again, 10'000, 0);
    try {
        (void)get(resource, stream, std::size_t{1} << 40, 0);
        CHECK(!"it returned");
    } catch (rmm::out_of_memory const& error) {
        std::fprintf(stderr, "%s\n", error.what());
    }
    trtalloc_allocator* closed = nullptr;
    CHECK(trtalloc_create("driver=sim", &closed) == TRTALLOC_STATUS_OK);
    trtalloc_destroy(closed);
    auto nothing = trtalloc::rmm_resource(closed);
    try {
        (void)get(nothing, stream, 512, 0);
        CHECK(!"it returned");
    } catch (rmm::out_of_memory const&) {
        CHECK(!"it is not for want of memory");
    } catch (rmm::bad_alloc const&) {
    }
}
