// RMM's containers and adaptors over trtalloc, which RMM 26.06 and newer take by value, on the simulated device. Nothing is copied:
// librmm.so contains NVIDIA's runtime, which needs a GPU.
#include <trtalloc/mr.hpp>
#include <trtalloc/rmm.hpp>

#include <cuda_runtime_api.h>
#include <rmm/device_buffer.hpp>
#include <rmm/device_uvector.hpp>
#include <rmm/mr/failure_callback_resource_adaptor.hpp>
#include <rmm/mr/per_device_resource.hpp>
#include <rmm/mr/statistics_resource_adaptor.hpp>

#include <cstdio>
#include <cstdlib>
#include <utility>

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

constexpr std::size_t bytes = 1 << 20;

static void use_current(cudaStream_t stream) {
    {
        rmm::device_buffer const nothing(0, stream);
        rmm::device_buffer buffer(bytes, stream);
        rmm::device_uvector<int> const numbers(1000, stream);
        CHECK(allocated() == bytes + 4096);
        rmm::device_buffer const moved(std::move(buffer));
        CHECK(allocated() == bytes + 4096);
    }
    CHECK(allocated() == 0);
    try {
        rmm::device_buffer const much(std::size_t{1} << 40, stream);
        CHECK(!"it returned");
    } catch (std::bad_alloc const& error) {
        std::fprintf(stderr, "%s\n", error.what());
    }
}

int main() {
    cudaStream_t const stream{};
    trtalloc::MemoryResource const pool;
    rmm::mr::set_current_device_resource(pool);
    use_current(stream);
    CHECK(rmm::mr::get_current_device_resource_ref() == pool);
    rmm::mr::callback_memory_resource callback = trtalloc::rmm_resource();
    auto const previous = rmm::mr::set_current_device_resource(callback);
    CHECK(previous == pool);
    use_current(stream);

    // An adaptor owns a copy of the resource.
    rmm::mr::statistics_resource_adaptor counted{pool};
    {
        rmm::device_buffer const buffer(bytes, stream, counted);
        CHECK(counted.get_bytes_counter().value == static_cast<std::int64_t>(bytes) && allocated() == bytes);
    }
    CHECK(counted.get_bytes_counter().value == 0 && allocated() == 0);

    // Each resource's exception reaches RMM's adaptor for failures.
    int asked = 0;
    auto const give_up = [](std::size_t, void* count) { return ++*static_cast<int*>(count), false; };
    for (bool const own : {false, true}) {
        try {
            if (own) {
                rmm::mr::failure_callback_resource_adaptor<std::bad_alloc> adaptor(pool, give_up, &asked);
                rmm::device_buffer const much(std::size_t{1} << 40, stream, adaptor);
            } else {
                rmm::mr::failure_callback_resource_adaptor<> adaptor(callback, give_up, &asked);
                rmm::device_buffer const much(std::size_t{1} << 40, stream, adaptor);
            }
            CHECK(!"it returned");
        } catch (std::bad_alloc const&) {
        }
    }
    CHECK(asked == 2);
}
