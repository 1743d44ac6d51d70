// trtalloc for TensorRT in C++17: compiled in the application, with the application's own NvInferRuntime.h.
//
//     trtalloc::Allocator memory{"limit=4GiB"};
//     runtime->setGpuAllocator(trtalloc::tensorrt(memory));     // nvinfer1::IRuntime or nvinfer1::IBuilder
//
// One trtalloc library serves TensorRT 8 to 11 and TensorRT-RTX 1; a TensorRT whose interface is another does not compile.
#ifndef TRTALLOC_TENSORRT_HPP
#define TRTALLOC_TENSORRT_HPP

#include <NvInferRuntime.h>
#include <trtalloc/trtalloc.hpp>

#include <algorithm>
#include <cstdint>
#include <mutex>
#include <type_traits>
#include <utility>

namespace trtalloc {

// The TensorRT that the application is compiled with, as createInferRuntime is given it: 8601, 10701 (RTX), 110400.
constexpr std::int32_t tensorrt_version = static_cast<std::int32_t>(
#ifdef NV_TENSORRT_VERSION
    NV_TENSORRT_VERSION
#else
    NV_TENSORRT_MAJOR * 1000 + NV_TENSORRT_MINOR * 100 + NV_TENSORRT_PATCH
#endif
);

static_assert((tensorrt_version >= 8000 && tensorrt_version < 20000) ||
                  (tensorrt_version >= 100000 && tensorrt_version < 120000),
              "this trtalloc does not know this TensorRT: it knows 8 to 11, and RTX 1");

#if NV_TENSORRT_MAJOR != 8 && NV_TENSORRT_MAJOR != 9
static_assert(std::is_same<nvinfer1::IGpuAllocator, nvinfer1::v_1_0::IGpuAllocator>::value,
              "this TensorRT has a newer IGpuAllocator than this trtalloc knows");
#endif
static_assert(sizeof(nvinfer1::IGpuAllocator) == sizeof(void*) && std::is_abstract<nvinfer1::IGpuAllocator>::value,
              "IGpuAllocator of this TensorRT is not the interface that trtalloc knows");

namespace detail {

// Why there is no interface. The version is the application's TensorRT's, so a library that does not know it does not support it.
inline Error no_interface(trtalloc_allocator* allocator) {
    Error const error = Error::last();
    bool const is_unknown = allocator != nullptr && error.status() == TRTALLOC_STATUS_INVALID_ARGUMENT;
    return is_unknown ? Error(TRTALLOC_STATUS_UNSUPPORTED, error.what()) : error;
}

}  // namespace detail

// The allocator as TensorRT takes it: for IRuntime::setGpuAllocator, IBuilder::setGpuAllocator and
// IExecutionContext::setTemporaryStorageAllocator. The same pointer each time. It belongs to the allocator, is never to be
// deleted, and stays valid for ever. The allocator itself must outlive every engine and context that uses it. Throws Error
// where the library that is loaded does not know this TensorRT, or the argument is null.
inline nvinfer1::IGpuAllocator* tensorrt(trtalloc_allocator* allocator) {
    void* const adapter = trtalloc_tensorrt_allocator(allocator, tensorrt_version);
    if (adapter == nullptr) {
        throw detail::no_interface(allocator);
    }
    return static_cast<nvinfer1::IGpuAllocator*>(adapter);
}

inline nvinfer1::IGpuAllocator* tensorrt(Allocator const& allocator) { return tensorrt(allocator.get()); }

// Whether a createInfer* function gave an object. Where there is no driver, some TensorRTs give not null but an address
// within the first page; to use or to delete it ends the process.
template <class T>
bool created(T const* object) noexcept {
    return reinterpret_cast<std::uintptr_t>(object) >= 4096;
}

namespace detail {

template <class Object>
auto set_allocator(Object& object, nvinfer1::IGpuAllocator* allocator, int)
    -> decltype(object.setGpuAllocator(allocator), true) {
    object.setGpuAllocator(allocator);
    return true;
}
template <class Object>
bool set_allocator(Object& object, nvinfer1::IGpuAllocator* allocator, long) {
    return object.setTemporaryStorageAllocator(allocator);
}

}  // namespace detail

// Gives an object of TensorRT's the allocator: an IRuntime or IBuilder for all that it and its engines allocate, an
// IExecutionContext (TensorRT 8.5) for storage whose size is only known as it runs, which is TensorRT's default allocator's
// where nothing is set on the context itself. Throws Error as tensorrt() does, and where a context refuses.
template <class Object>
void attach(Object& object, trtalloc_allocator* allocator) {
    if (!detail::set_allocator(object, tensorrt(allocator), 0)) {
        throw Error(TRTALLOC_STATUS_UNSUPPORTED, "the context does not take the allocator");
    }
}

template <class Object>
void attach(Object& object, Allocator const& allocator) {
    attach(object, allocator.get());
}

// IOutputAllocator came with TensorRT 8.5.
#if NV_TENSORRT_MAJOR != 8 || NV_TENSORRT_MINOR >= 5

// The outputs of one execution context whose sizes are known only when they are computed. Each is as large as it has ever been,
// not as large as it could be, and grows where it lies.
//
//     trtalloc::Outputs outputs{memory};
//     context->setOutputAllocator("boxes", outputs.get());
//     context->enqueueV3(stream);
//     trtalloc_output const boxes = outputs.at("boxes");          // memory, bytes, rank and extents
//
// The memory is the tensor's until the next enqueue, which the application orders behind its own use of it, or until the
// object goes. Must outlive the context's last enqueue; the allocator must outlive it. It can be moved.
class Outputs {
public:
    explicit Outputs(trtalloc_allocator* allocator)
        : adapter_(trtalloc_tensorrt_output_allocator(allocator, tensorrt_version)) {
        if (adapter_ == nullptr) {
            throw detail::no_interface(allocator);
        }
    }
    explicit Outputs(Allocator const& allocator) : Outputs(allocator.get()) {}
    Outputs(Outputs&& other) noexcept : adapter_(std::exchange(other.adapter_, nullptr)) {}
    Outputs& operator=(Outputs&& other) noexcept {
        std::swap(adapter_, other.adapter_);
        return *this;
    }
    Outputs(Outputs const&) = delete;
    Outputs& operator=(Outputs const&) = delete;
    ~Outputs() {
        if (adapter_ != nullptr) {
            trtalloc_output_release(adapter_, nullptr);
        }
    }

    // For IExecutionContext::setOutputAllocator, with the name of any output.
    nvinfer1::IOutputAllocator* get() const noexcept { return static_cast<nvinfer1::IOutputAllocator*>(adapter_); }

    // An output as it was computed last. Throws Error where TensorRT has not asked for it.
    trtalloc_output at(char const* tensor) const {
        trtalloc_output out{};
        check(trtalloc_output_get(adapter_, tensor, &out));
        return out;
    }

    // As at(); the memory is the caller's from now on, to be given to trtalloc_deallocate.
    trtalloc_output take(char const* tensor) {
        trtalloc_output out{};
        check(trtalloc_output_take(adapter_, tensor, &out));
        return out;
    }

    // Gives an output's memory back, or that of all.
    void release(char const* tensor = nullptr) { check(trtalloc_output_release(adapter_, tensor)); }

private:
    void* adapter_;
};

#endif

// Scratch memory that several execution contexts share, as large as the largest shape that any of them has run, not the sum
// and not the worst case. The contexts manage no memory of their own: kUSER_MANAGED, or
// createExecutionContextWithoutDeviceMemory.
//
//     trtalloc::SharedScratch scratch{memory};
//     {
//         auto const lease = scratch.lend(*context, stream);       // after its input shapes are set
//         context->enqueueV3(stream);
//     }
//
// What runs at the same time would overwrite each other's scratch, so all contexts are enqueued on one stream, or the
// application orders the streams and says so with ordered(); lend() refuses another stream before that. A lease keeps other
// threads waiting until it goes. A captured graph may keep the address it saw for as long as the object lives, and runs under
// the same rule.
class SharedScratch {
public:
    // While it lives, no other thread gets a lease.
    using Lease = std::unique_lock<std::mutex>;

    explicit SharedScratch(trtalloc_allocator* allocator) : allocator_(allocator) {
        if (allocator == nullptr) {
            throw Error(TRTALLOC_STATUS_INVALID_ARGUMENT, "allocator is NULL");
        }
    }
    explicit SharedScratch(Allocator const& allocator) : SharedScratch(allocator.get()) {}
    SharedScratch(SharedScratch const&) = delete;
    SharedScratch& operator=(SharedScratch const&) = delete;
    ~SharedScratch() { trtalloc_deallocate(allocator_, memory_); }

    // Gives `context` (an nvinfer1::IExecutionContext) what its present input shapes need, for one enqueue on `stream`. Throws
    // Error where memory is out, and then the context keeps what it had; and where the memory was last lent on another stream.
    template <class Context>
    [[nodiscard]] Lease lend(Context& context, void* stream) {
        Lease lease(mutex_);
        if (lent_ && stream != stream_) {
            throw Error(TRTALLOC_STATUS_INVALID_ARGUMENT,
                        "the scratch memory was lent on another stream: order the streams, then call ordered()");
        }
        reserve(need(context, 0));
        set(context, 0);
        lent_ = true;
        stream_ = stream;
        return lease;
    }

    // The application has ordered everything it enqueued so far before what it enqueues next, on whichever stream: by an
    // event, or by waiting.
    void ordered() noexcept {
        Lease const lease(mutex_);
        lent_ = false;
    }

    // Bytes there are now.
    std::uint64_t size() const {
        Lease const lease(mutex_);
        return size_;
    }

private:
    // What the shapes at hand need, where this TensorRT can tell (10 and later); else what any shape may need.
    template <class Context>
    static auto need(Context& context, int) -> decltype(static_cast<std::uint64_t>(
        context.updateDeviceMemorySizeForShapes())) {
        std::uint64_t const bytes = context.updateDeviceMemorySizeForShapes();
        if (bytes == 0) {
            throw Error(TRTALLOC_STATUS_INVALID_ARGUMENT, "TensorRT does not know the context's size: are its shapes set?");
        }
        return bytes;
    }
    template <class Context>
    static std::uint64_t need(Context& context, long) {
        return context.getEngine().getDeviceMemorySize();
    }

    template <class Context>
    auto set(Context& context, int) -> decltype(context.setDeviceMemoryV2(nullptr, 0)) {
        context.setDeviceMemoryV2(memory_, static_cast<std::int64_t>(size_));
    }
    template <class Context>
    void set(Context& context, long) {
        context.setDeviceMemory(memory_);
    }

    void reserve(std::uint64_t bytes) {
        if (memory_ != nullptr && bytes <= size_) {
            return;
        }
        // Never nothing: a context without scratch still wants an address.
        bytes = std::max<std::uint64_t>(bytes, 256);
        void* grown = memory_ == nullptr ? nullptr : trtalloc_reallocate(allocator_, memory_, 256, bytes);
        if (grown == nullptr) {
            grown = trtalloc_allocate(allocator_, bytes, 256, TRTALLOC_RESIZABLE);
            if (grown == nullptr) {
                throw Error::last();
            }
            trtalloc_deallocate(allocator_, memory_);
        }
        memory_ = grown;
        size_ = bytes;
    }

    trtalloc_allocator* allocator_;
    mutable std::mutex mutex_;
    void* memory_ = nullptr;
    std::uint64_t size_ = 0;
    void* stream_ = nullptr;
    bool lent_ = false;
};

}  // namespace trtalloc

#endif
