// What rmm.hpp needs of RMM's header of that name.
#pragma once

#include <rmm/cuda_stream_view.hpp>

#include <cstddef>
#include <functional>

namespace rmm::mr {

using allocate_callback_t = std::function<void*(std::size_t, cuda_stream_view, void*)>;
using deallocate_callback_t = std::function<void(void*, std::size_t, cuda_stream_view, void*)>;

class callback_memory_resource {
public:
    callback_memory_resource(allocate_callback_t allocate, deallocate_callback_t deallocate, void* first, void* second)
        : allocate_(allocate), deallocate_(deallocate), first_(first), second_(second) {}

    void* allocate(cuda_stream_view stream, std::size_t bytes) { return allocate_(bytes, stream, first_); }
    void deallocate(cuda_stream_view stream, void* memory, std::size_t bytes) noexcept {
        deallocate_(memory, bytes, stream, second_);
    }

private:
    allocate_callback_t allocate_;
    deallocate_callback_t deallocate_;
    void* first_;
    void* second_;
};

}  // namespace rmm::mr
