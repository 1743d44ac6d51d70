// trtalloc for C++17: an owner of an allocator, and errors as exceptions. Needs no TensorRT; see tensorrt.hpp for that.
#ifndef TRTALLOC_TRTALLOC_HPP
#define TRTALLOC_TRTALLOC_HPP

#include <trtalloc/trtalloc.h>

#include <cstdint>
#include <stdexcept>
#include <string>
#include <utility>

namespace trtalloc {

// A call that failed: what() says why, in words.
class Error : public std::runtime_error {
public:
    Error(trtalloc_status status, char const* what) : std::runtime_error(what), status_(status) {}

    trtalloc_status status() const noexcept { return status_; }

private:
    trtalloc_status status_;
};

// Throws what this thread's last call left, unless `status` says that all is well.
inline void check(trtalloc_status status) {
    if (status != TRTALLOC_STATUS_OK) {
        throw Error(status, trtalloc_last_error());
    }
}

// Owns an allocator: closed with the object. Blocks still out stay valid then, and so do its TensorRT interfaces. Safe
// from any thread, but for moving and assigning. Functions that allocate or free do as C does: nullptr or false, and the
// reason in trtalloc_last_error(); the others throw Error.
class Allocator {
public:
    // `options` is "key=value,key=value".
    explicit Allocator(std::string const& options = {}) { check(trtalloc_create(options.c_str(), &allocator_)); }

    // Over memory of the caller's, which must live until the last block is given back.
    Allocator(void* base, std::uint64_t bytes, std::string const& options = {}) {
        check(trtalloc_create_from(base, bytes, options.c_str(), &allocator_));
    }

    Allocator(Allocator&& other) noexcept : allocator_(std::exchange(other.allocator_, nullptr)) {}

    Allocator& operator=(Allocator&& other) noexcept {
        if (this != &other) {
            trtalloc_destroy(allocator_);
            allocator_ = std::exchange(other.allocator_, nullptr);
        }
        return *this;
    }

    Allocator(Allocator const&) = delete;
    Allocator& operator=(Allocator const&) = delete;

    ~Allocator() { trtalloc_destroy(allocator_); }

    // For the C functions. Null where the object was moved from.
    trtalloc_allocator* get() const noexcept { return allocator_; }

    void* allocate(std::uint64_t size, std::uint64_t alignment = 0, std::uint32_t flags = 0) noexcept {
        return trtalloc_allocate(allocator_, size, alignment, flags);
    }

    void* allocate_async(std::uint64_t size, void* stream, std::uint64_t alignment = 0,
                         std::uint32_t flags = 0) noexcept {
        return trtalloc_allocate_async(allocator_, size, alignment, flags, stream);
    }

    void* reallocate(void* address, std::uint64_t new_size, std::uint64_t alignment = 0) noexcept {
        return trtalloc_reallocate(allocator_, address, alignment, new_size);
    }

    bool deallocate(void* memory) noexcept { return trtalloc_deallocate(allocator_, memory); }

    bool deallocate_async(void* memory, void* stream) noexcept {
        return trtalloc_deallocate_async(allocator_, memory, stream);
    }

    void record_stream(void* memory, void* stream) { check(trtalloc_record_stream(allocator_, memory, stream)); }

    void stream_release(void* stream) { check(trtalloc_stream_release(allocator_, stream)); }

    // `device` -1, here and below: the current one.
    trtalloc_stats stats(std::int32_t device = -1) const {
        trtalloc_stats out;
        check(trtalloc_stats_get(allocator_, device, &out, sizeof out));
        return out;
    }

    void reset_peaks(std::int32_t device = -1) { check(trtalloc_stats_reset_peaks(allocator_, device)); }

    // Returns the bytes given back.
    std::uint64_t trim(std::uint64_t keep_bytes = 0, std::int32_t device = -1) {
        std::uint64_t released = 0;
        check(trtalloc_trim(allocator_, device, keep_bytes, &released));
        return released;
    }

    void set_limit(std::uint64_t bytes, std::int32_t device = -1) {
        check(trtalloc_set_limit(allocator_, device, bytes));
    }

private:
    trtalloc_allocator* allocator_ = nullptr;
};

}  // namespace trtalloc

#endif
