// trtalloc for TensorRT in C++17: compiled in the application, with the application's own NvInferRuntime.h.
//
//     trtalloc::Allocator memory{"limit=4GiB"};
//     runtime->setGpuAllocator(trtalloc::tensorrt(memory));     // nvinfer1::IRuntime or nvinfer1::IBuilder
//
// One trtalloc library serves TensorRT 8 to 11 and TensorRT-RTX 1. With any other interface this header does not compile.
//
// Libraries of one process may be compiled with different TensorRTs. What this header declares is therefore in an inline
// namespace of the TensorRT's version: source code does not name it, and each library gets its own functions. So an Outputs,
// a SharedScratch or a Fit of one TensorRT is another type than that of another TensorRT.
#ifndef TRTALLOC_TENSORRT_HPP
#define TRTALLOC_TENSORRT_HPP

#include <NvInferRuntime.h>
#include <trtalloc/trtalloc.hpp>

#include <algorithm>
#include <cstdint>
#include <mutex>
#include <optional>
#include <type_traits>
#include <utility>

#include <pthread.h>

#define TRTALLOC_NAMESPACE_OF(major, minor, patch) of_tensorrt_##major##_##minor##_##patch
// Between the two, the preprocessor replaces the names of the numbers.
#define TRTALLOC_NAMESPACE(major, minor, patch) TRTALLOC_NAMESPACE_OF(major, minor, patch)

namespace trtalloc {
inline namespace TRTALLOC_NAMESPACE(NV_TENSORRT_MAJOR, NV_TENSORRT_MINOR, NV_TENSORRT_PATCH) {

// The version of TensorRT with which the application is compiled, as createInferRuntime receives it: 8601, 10701 (RTX), 110400.
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

// The reason why there is no interface. A version that the library does not know is reported as unsupported, because the
// version is that of the application's TensorRT.
inline Error no_interface(trtalloc_allocator* allocator) {
    Error const error = Error::last();
    bool const is_unknown = allocator != nullptr && error.status() == TRTALLOC_STATUS_INVALID_ARGUMENT;
    return is_unknown ? Error(TRTALLOC_STATUS_UNSUPPORTED, error.what()) : error;
}

}  // namespace detail

// The allocator's TensorRT interface, for IRuntime::setGpuAllocator, IBuilder::setGpuAllocator and
// IExecutionContext::setTemporaryStorageAllocator. Every call returns the same pointer. The interface belongs to the
// allocator: the application never deletes it, and it stays valid for ever. The allocator must stay open as long as an engine
// or a context uses it. Throws Error if the loaded library does not know this TensorRT, or if the argument is null.
inline nvinfer1::IGpuAllocator* tensorrt(trtalloc_allocator* allocator) {
    void* const adapter = trtalloc_tensorrt_allocator(allocator, tensorrt_version);
    if (adapter == nullptr) {
        throw detail::no_interface(allocator);
    }
    return static_cast<nvinfer1::IGpuAllocator*>(adapter);
}

inline nvinfer1::IGpuAllocator* tensorrt(Allocator const& allocator) { return tensorrt(allocator.get()); }

// As above, an interface whose memory counts for `name`, a model's or an engine's, whichever thread TensorRT calls from.
// Statistics, metrics, snapshots and reports show what each name holds; trtalloc_set_tag_limit limits it. Give each model's
// IRuntime a name of its own:
//
//     runtime->setGpuAllocator(trtalloc::tensorrt(memory, "resnet"));
//
// The same name gives the same pointer. Null or an empty name gives the interface without a name, and so does a further name
// after 1023.
inline nvinfer1::IGpuAllocator* tensorrt(trtalloc_allocator* allocator, char const* name) {
    void* const adapter = trtalloc_tensorrt_allocator_named(allocator, tensorrt_version, name);
    if (adapter == nullptr) {
        throw detail::no_interface(allocator);
    }
    return static_cast<nvinfer1::IGpuAllocator*>(adapter);
}

inline nvinfer1::IGpuAllocator* tensorrt(Allocator const& allocator, char const* name) {
    return tensorrt(allocator.get(), name);
}

// Whether a createInfer* function created an object. Without a driver, some TensorRT versions return an address in the first
// page instead of null; using or deleting such an object crashes the process.
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

// Sets the allocator on an object of TensorRT. An IRuntime or IBuilder uses it for everything that it and its engines
// allocate. An IExecutionContext (TensorRT 8.5) uses it for storage whose size is known only at run time; without it, the
// context uses TensorRT's default allocator for that. With a name, the memory counts for it. Throws Error as tensorrt() does,
// and if a context refuses.
template <class Object>
void attach(Object& object, trtalloc_allocator* allocator, char const* name) {
    if (!detail::set_allocator(object, tensorrt(allocator, name), 0)) {
        throw Error(TRTALLOC_STATUS_UNSUPPORTED, "the context refused the allocator");
    }
}

template <class Object>
void attach(Object& object, trtalloc_allocator* allocator) {
    attach(object, allocator, nullptr);
}

template <class Object>
void attach(Object& object, Allocator const& allocator, char const* name) {
    attach(object, allocator.get(), name);
}

template <class Object>
void attach(Object& object, Allocator const& allocator) {
    attach(object, allocator.get(), nullptr);
}

// What a deserialized engine needs for execution contexts, beside what the pool can still give, in bytes.
struct Fit {
    // The most that one context needs for any profile, as TensorRT says: activations and scratch, also the scratch for streamed
    // weights. Not what TensorRT keeps beside them, and not the engine's weights, which are in the pool already.
    std::uint64_t per_context;
    // `per_context` for all contexts.
    std::uint64_t needed;
    // `available` of trtalloc_stats: what is free in the pool, and what limit, headroom and device leave beyond it. Where the
    // runtime's name has a limit that leaves less, that.
    std::uint64_t available;
    // The weights that can be streamed. 0 for an engine without BuilderFlag::kWEIGHT_STREAMING, and before TensorRT 10.1.
    std::uint64_t streamable_weights;
    // Of these, what may lie on the device now: the engine's present weight streaming budget.
    std::uint64_t streaming_budget_now;
    // Whether `needed` is available. Another thread or process may take it before the contexts exist, and a large block may not
    // find it in one piece.
    bool fits;
    // Whether `available` is what the limit of the name leaves (trtalloc_set_tag_limit), not what the pool can give.
    bool limited_by_name;

    // By how much the contexts miss; 0 if they fit.
    std::uint64_t missing() const noexcept { return needed > available ? needed - available : 0; }

    // The largest budget with which the contexts fit, for ICudaEngine::setWeightStreamingBudgetV2, which TensorRT accepts only
    // while the engine has no context; nothing where no budget makes them fit, or the engine does not stream. Streaming needs
    // scratch, whose size TensorRT says only once a budget is set. So ask for the fit again afterwards.
    std::optional<std::int64_t> weight_streaming_budget() const noexcept {
        std::uint64_t const room = streaming_budget_now + available;
        if (streamable_weights == 0 || room < needed) {
            return std::nullopt;
        }
        // In parentheses, as below, where a macro of that name could be meant.
        return static_cast<std::int64_t>((std::min)(room - needed, streamable_weights));
    }
};

namespace detail {

// TensorRT 10.1 and later.
template <class Engine>
auto context_bytes(Engine const& engine, int) -> decltype(static_cast<std::uint64_t>(engine.getDeviceMemorySizeV2())) {
    return static_cast<std::uint64_t>(std::max<std::int64_t>(engine.getDeviceMemorySizeV2(), 0));
}
template <class Engine>
std::uint64_t context_bytes(Engine const& engine, long) {
    return engine.getDeviceMemorySize();
}

// The weights that can be streamed, and the present budget. TensorRT 10.0 has another budget, which does not mix with this one.
template <class Engine>
auto streaming(Engine const& engine, Fit& fit, int)
    -> decltype(engine.getStreamableWeightsSize(), engine.getWeightStreamingBudgetV2(), void()) {
    std::int64_t const weights = std::max<std::int64_t>(engine.getStreamableWeightsSize(), 0);
    if (weights > 0) {
        std::int64_t const budget = std::max<std::int64_t>(engine.getWeightStreamingBudgetV2(), 0);
        fit.streamable_weights = static_cast<std::uint64_t>(weights);
        fit.streaming_budget_now = static_cast<std::uint64_t>((std::min)(budget, weights));
    }
}
template <class Engine>
void streaming(Engine const&, Fit&, long) {}

}  // namespace detail

// Whether `contexts` more contexts of a deserialized engine (an nvinfer1::ICudaEngine) fit, on the device, -1: the current one.
// It allocates nothing and changes nothing.
//
//     trtalloc::Fit const fit = trtalloc::fit(*engine, memory, 4);
//     if (!fit.fits) {
//         std::fprintf(stderr, "%llu bytes are missing\n", static_cast<unsigned long long>(fit.missing()));
//     }
//
// The engine's memory must come from `allocator`: its runtime has it. Where the runtime has the allocator under a name
// (trtalloc::tensorrt(memory, "resnet")), pass that name: it may have a limit of its own. Throws Error if the statistics cannot be read, and if the
// allocator has not been used on the device, so that it does not know the device's memory.
template <class Engine>
Fit fit(Engine const& engine, trtalloc_allocator* allocator, std::uint64_t contexts = 1, std::int32_t device = -1,
        char const* name = nullptr) {
    Fit fit{};
    fit.per_context = detail::context_bytes(engine, 0);
    bool const countable = fit.per_context == 0 || contexts <= UINT64_MAX / fit.per_context;
    fit.needed = countable ? fit.per_context * contexts : UINT64_MAX;
    detail::streaming(engine, fit, 0);
    trtalloc_stats now{};
    check(trtalloc_stats_get(allocator, device, &now, sizeof now));
    if (now.device_total == 0 && now.reserved == 0) {
        throw Error(TRTALLOC_STATUS_UNSUPPORTED, "the device's memory is not known: the allocator has not been used on it");
    }
    fit.available = now.available;
    if (name != nullptr) {
        trtalloc_tag_stats named{};
        check(trtalloc_tag_stats_get(allocator, device, name, &named, sizeof named));
        std::uint64_t const left = named.limit > named.allocated ? named.limit - named.allocated : 0;
        fit.limited_by_name = named.limit != 0 && left < fit.available;
        fit.available = fit.limited_by_name ? left : fit.available;
    }
    fit.fits = fit.needed <= fit.available;
    return fit;
}

template <class Engine>
Fit fit(Engine const& engine, Allocator const& allocator, std::uint64_t contexts = 1, std::int32_t device = -1,
        char const* name = nullptr) {
    return fit(engine, allocator.get(), contexts, device, name);
}

// IOutputAllocator came with TensorRT 8.5.
#if NV_TENSORRT_MAJOR != 8 || NV_TENSORRT_MINOR >= 5

// The outputs of one execution context whose sizes are known only when they are computed. Each has memory for the largest size
// so far, not for the largest possible size, and grows in place.
//
//     trtalloc::Outputs outputs{memory};
//     context->setOutputAllocator("boxes", outputs.get());
//     context->enqueueV3(stream);
//     trtalloc_output const boxes = outputs.at("boxes");          // memory, bytes, rank and extents
//
// The memory belongs to the tensor until the next enqueue or until the object is destroyed. The application orders the next
// enqueue after its own use of the memory. The object must outlive the context's last enqueue, and the allocator must outlive
// the object. An Outputs can be moved.
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

    // An output as it was last computed. Throws Error if TensorRT has not requested it yet.
    trtalloc_output at(char const* tensor) const {
        trtalloc_output out{};
        check(trtalloc_output_get(adapter_, tensor, &out));
        return out;
    }

    // As at(), and passes the memory to the caller, who frees it with trtalloc_deallocate.
    trtalloc_output take(char const* tensor) {
        trtalloc_output out{};
        check(trtalloc_output_take(adapter_, tensor, &out));
        return out;
    }

    // Frees one output's memory, or that of all outputs.
    void release(char const* tensor = nullptr) { check(trtalloc_output_release(adapter_, tensor)); }

private:
    void* adapter_;
};

#endif

// Scratch memory that several execution contexts share. Its size is that of the largest shape that any of them has run, not the
// sum of all and not the largest possible. Create the contexts without memory of their own: with kUSER_MANAGED, or with
// createExecutionContextWithoutDeviceMemory.
//
//     trtalloc::SharedScratch scratch{memory};
//     {
//         auto const lease = scratch.lend(*context, stream);       // after its input shapes are set
//         context->enqueueV3(stream);
//     }
//
// Contexts that run at the same time would overwrite each other's scratch. So enqueue all contexts on one stream, or order the
// streams and then call ordered(); lend() refuses another stream before that, also where cudaStreamPerThread is that of another
// thread. Wait for a stream's work before the stream is destroyed, or before its thread ends: a new one may have its handle.
// While a lease exists, other threads wait for it.
// A captured graph may use the address that it captured as long as the object exists, under the same rule, if the memory was
// resized since and not replaced: so not with backing=malloc. An out-of-memory handler must not call the object that requests.
class SharedScratch {
public:
    // While a lease exists, no other thread gets one.
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

    // Sets on `context` (an nvinfer1::IExecutionContext) the memory that its present input shapes need, for one enqueue on
    // `stream`. Throws Error if memory has run out; the context then keeps the memory that it had. Throws Error also if the
    // memory was last lent on another stream.
    template <class Context>
    [[nodiscard]] Lease lend(Context& context, void* stream) {
        Lease lease(mutex_);
        bool const is_other = stream != stream_ || (is_per_thread(stream) && pthread_equal(thread_, pthread_self()) == 0);
        if (lent_ && is_other) {
            throw Error(TRTALLOC_STATUS_INVALID_ARGUMENT,
                        "the scratch memory was lent on another stream: order the streams, then call ordered()");
        }
        reserve(need(context, 0));
        set(context, 0);
        lent_ = true;
        stream_ = stream;
        thread_ = pthread_self();
        return lease;
    }

    // Declares that the application has ordered everything that it enqueued so far before what it enqueues next, on any
    // stream: by an event, or by waiting.
    void ordered() noexcept {
        Lease const lease(mutex_);
        lent_ = false;
    }

    // The present size in bytes.
    std::uint64_t size() const {
        Lease const lease(mutex_);
        return size_;
    }

private:
    // cudaStreamPerThread is 2: in each thread it is another stream.
    static bool is_per_thread(void* stream) noexcept { return reinterpret_cast<std::uintptr_t>(stream) == 2; }

    // The bytes that the present shapes need, where this TensorRT reports that (10 and later); otherwise the largest size that
    // any shape may need.
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
        // Never 0 bytes: a context that needs no scratch still requires an address.
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
    pthread_t thread_{};
    bool lent_ = false;
};

}  // inline namespace
}  // namespace trtalloc

#undef TRTALLOC_NAMESPACE
#undef TRTALLOC_NAMESPACE_OF

#endif
