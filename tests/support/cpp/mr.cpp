// cuda::mr::resource over trtalloc, with every CCCL, on the simulated device.
#include <trtalloc/mr.hpp>

#include <cuda_runtime_api.h>
#if CCCL_VERSION >= 3004000
#include <cuda/buffer>
#endif

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <type_traits>

#define CHECK(condition)                                                        \
    do {                                                                        \
        if (!(condition)) {                                                     \
            std::fprintf(stderr, "line %d: %s\n", __LINE__, #condition);        \
            std::abort();                                                       \
        }                                                                       \
    } while (false)

using Resource = trtalloc::MemoryResource;
using Accessible = cuda::mr::device_accessible;

static_assert(cuda::mr::resource_with<Resource, Accessible>);
static_assert(cuda::mr::synchronous_resource_with<Resource, Accessible>);
static_assert(!cuda::has_property<Resource, cuda::mr::host_accessible>);
static_assert(std::is_nothrow_copy_constructible_v<Resource> && std::is_nothrow_copy_assignable_v<Resource>);
static_assert(std::is_nothrow_copy_constructible_v<trtalloc::OutOfMemory>);
static_assert(noexcept(std::declval<Resource&>().deallocate(cudaStream_t{}, nullptr, 0)));
static_assert(noexcept(std::declval<Resource&>().deallocate_sync(nullptr, 0)));

static std::uint64_t allocated(trtalloc_allocator* allocator) {
    trtalloc_stats stats{};
    CHECK(trtalloc_stats_get(allocator, 0, &stats, sizeof stats) == TRTALLOC_STATUS_OK);
    return stats.allocated;
}

// Through the class itself, and through what CCCL makes of it.
template <class Any>
void use(Any& resource, trtalloc_allocator* allocator) {
    cuda::stream_ref const stream{cudaStream_t{}};
    for (std::size_t alignment = 1; alignment <= std::size_t{2} << 20; alignment *= 2) {
        // Not aligned by chance: a small block lies before it.
        void* const before = resource.allocate(stream, 1, 1);
        void* const memory = resource.allocate(stream, 10'000, alignment);
        CHECK(memory != nullptr && reinterpret_cast<std::uintptr_t>(memory) % alignment == 0);
        CHECK(allocated(allocator) >= 10'240);
        resource.deallocate(stream, memory, 10'000, alignment);
        resource.deallocate(stream, before, 1, 1);
        void* const sync = resource.allocate_sync(10'000, alignment);
        CHECK(sync != nullptr && reinterpret_cast<std::uintptr_t>(sync) % alignment == 0);
        resource.deallocate_sync(sync, 10'000, alignment);
        CHECK(allocated(allocator) == 0);
    }
    CHECK(resource.allocate(stream, 0, 16) == nullptr && resource.allocate_sync(0, 16) == nullptr);
    resource.deallocate(stream, nullptr, 0, 16);
    resource.deallocate_sync(nullptr, 0, 16);
    for (bool const sync : {false, true}) {
        auto const get = [&](std::size_t bytes, std::size_t alignment) {
            (void)(sync ? resource.allocate_sync(bytes, alignment) : resource.allocate(stream, bytes, alignment));
            CHECK(!"it returned");
        };
        try {
            get(std::size_t{1} << 40, 16);
        } catch (std::bad_alloc const& error) {
            CHECK(dynamic_cast<trtalloc::OutOfMemory const*>(&error) != nullptr);
            CHECK(std::string(error.what()).find("memory") != std::string::npos);
        }
        try {
            get(512, 3);
        } catch (trtalloc::Error const& error) {
            CHECK(error.status() == TRTALLOC_STATUS_INVALID_ARGUMENT);
        }
    }
    // A refused free is logged, and throws nothing.
    int foreign = 0;
    resource.deallocate(stream, &foreign, 512, 16);
}

int main() {
    trtalloc::Allocator const own("driver=sim"), other("driver=sim");
    Resource resource(own);
    CHECK(resource == Resource(own.get()) && resource != Resource(other) && resource != Resource());
    CHECK(Resource().get() == trtalloc_default());
    use(resource, own.get());

    // By reference.
    cuda::mr::resource_ref<Accessible> reference(resource);
    use(reference, own.get());
    CHECK(reference == cuda::mr::resource_ref<Accessible>(resource));
#if CCCL_VERSION >= 3002000
    // By value.
    cuda::mr::any_resource<Accessible> any(resource);
    cuda::mr::any_resource<Accessible> const copy = any;
    use(any, own.get());
    CHECK(any == copy && any == resource && any != cuda::mr::any_resource<Accessible>(Resource(other)));
    static_assert(std::is_same_v<Resource::default_queries, cuda::mr::properties_list<Accessible>>);
#endif
#if CCCL_VERSION >= 3004000
    {
        auto const buffer = cuda::make_buffer<int>(cuda::stream_ref{cudaStream_t{}}, resource, 1024, cuda::no_init);
        CHECK(buffer.size() == 1024 && allocated(own.get()) == 4096);
    }
    CHECK(allocated(own.get()) == 0);
#endif

    // Null is the default stream of this source file. What is freed there is free for the same stream at once.
    cuda::stream_ref const null{cudaStream_t{}};
    void* const memory = resource.allocate(null, 4096);
    resource.deallocate(null, memory, 4096);
#ifdef CUDA_API_PER_THREAD_DEFAULT_STREAM
    void* const same = cudaStreamPerThread;
#else
    void* const same = nullptr;
#endif
    CHECK(trtalloc_allocate_async(own.get(), 4096, 0, 0, same) == memory);
    CHECK(trtalloc_deallocate_async(own.get(), memory, same));

    trtalloc_destroy(own.get());
    try {
        (void)resource.allocate(null, 512);
        CHECK(!"it returned");
    } catch (trtalloc::Error const& error) {
        CHECK(error.status() != TRTALLOC_STATUS_OUT_OF_MEMORY);
    }
}
