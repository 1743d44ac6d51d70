// PyTorch's CUDA allocator over trtalloc's process-wide allocator, with what torch.cuda.memory.CUDAPluggableAllocator leaves out:
// private pools of graphs and of torch.cuda.MemPool, and their checkpoints. _torch_extension.py compiles this file against the
// installed PyTorch, and passes the library's functions.
//
// A request outside of every private pool goes to the library, as does its free. A private pool takes segments from the library and
// divides them: a block that is freed serves later requests of the same pool on the same stream, and no others. So a graph's memory
// stays its pool's until the last user of the pool has released it. Then the segments go back by trtalloc_deallocate, which waits
// for all work that is queued by then. PyTorch's own rules hold: it decides which requests belong to a pool (the filters), and the
// caller does not replay graphs of one pool at the same time.
//
// mutex_ is never held while the library or another allocator is called: they may take Python's lock, which a thread that waits
// for mutex_ may hold.

#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>
#include <torch/csrc/cuda/CUDAPluggableAllocator.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <stdexcept>
#include <string>
#include <tuple>
#include <type_traits>
#include <unordered_map>
#include <unordered_set>
#include <vector>

namespace {

using c10::DeviceIndex;
using c10::cuda::MempoolId_t;
using c10::cuda::CUDACachingAllocator::AllocatorState;
using c10::cuda::CUDACachingAllocator::CheckpointDelta;
using c10::cuda::CUDACachingAllocator::CUDAAllocator;
using Base = torch::cuda::CUDAPluggableAllocator::CUDAPluggableAllocator;
using Lock = std::unique_lock<std::mutex>;

// The library's functions, in the order of _FUNCTIONS in _torch_extension.py.
struct Library {
    void* (*malloc)(size_t size, int device, void* stream);
    void* (*malloc_or_throw)(size_t size, int device, void* stream);
    void (*free)(void* memory, size_t size, int device, void* stream);
    void (*record_stream)(void* memory, void* stream);
    void (*init)(int devices);
    void (*reset)();
    void (*memory_fraction)(double fraction, int device);
    void* (*process)();
    bool (*deallocate)(void* allocator, void* memory);
    int (*last_status)();
    int (*stats_get)(void* allocator, int device, void* stats, size_t size);
};

constexpr int OUT_OF_MEMORY = 2;  // TRTALLOC_STATUS_OUT_OF_MEMORY

// PyTorch's own sizes: programs and its tests expect the segments of private pools to have them.
constexpr size_t ROUND = 512, MIB = size_t{1} << 20;
constexpr size_t SMALL = MIB, SMALL_SEGMENT = 2 * MIB, MIDDLE = 10 * MIB, MIDDLE_SEGMENT = 20 * MIB;

size_t rounded(size_t size, size_t to) {
    return (size + to - 1) / to * to;
}

struct Segment;

struct Block {
    Segment* segment;
    char* address;
    size_t size;
    size_t requested = 0;
    enum { FREE, USED, PENDING } state = FREE;
    Block *before = nullptr, *after = nullptr;     // its neighbours in the segment
    std::vector<cudaStream_t> streams{};           // of record_stream
};

struct Earlier {
    bool operator()(const Block* a, const Block* b) const;
};

struct Pool {
    MempoolId_t id;
    DeviceIndex device;
    int uses = 0;
    bool use_on_oom = false, no_split = false;
    std::shared_ptr<CUDAAllocator> source;         // of a MemPool with an allocator of its own; else the library
    std::set<Block*, Earlier> free;
    std::map<char*, std::unique_ptr<Segment>> segments;
};

struct Segment {
    std::shared_ptr<Pool> pool;
    char* address;
    size_t size;
    cudaStream_t stream;
    bool small;
    Block* first;
};

bool Earlier::operator()(const Block* a, const Block* b) const {
    auto key = [](const Block* block) {
        return std::make_tuple(block->segment->small, block->segment->stream, block->size, block->address);
    };
    return key(a) < key(b);
}

// What a pool has returned: it is freed once mutex_ is no longer held.
using Returned = std::vector<std::pair<std::shared_ptr<CUDAAllocator>, char*>>;

// A block that other streams may still use. Without events, a capture was running when it was freed.
struct Pending {
    Block* block;
    std::vector<cudaEvent_t> events;
};

struct Live {
    size_t size;
    DeviceIndex device;
    cudaStream_t stream;
    Block* block;                                  // in a private pool
};

struct Counters {
    uint64_t allocated = 0, freed = 0;             // bytes, in total
    // Of private pools: bytes from the library, and in use.
    uint64_t held = 0, used = 0;
    // Of private pools: segments from the library, and blocks, in total.
    uint64_t segments_allocated = 0, segments_freed = 0, blocks_allocated = 0, blocks_freed = 0;
};

struct State : AllocatorState {
    struct Part {
        size_t size, requested;
        bool used;
        std::vector<cudaStream_t> streams;
    };
    MempoolId_t id;
    std::vector<std::pair<char*, std::vector<Part>>> segments;
};

// PyTorch reports captures apart from requests that are routed to a pool from 2.10 on.
template <class T>
auto reports_captures(int) -> decltype(std::declval<T&>().markCaptureBegin(0), std::true_type{});
template <class T>
std::false_type reports_captures(...);

struct Allocator final : Base {
    explicit Allocator(const Library& functions)
        : Base(functions.malloc_or_throw, functions.free), library(functions) {
        set_init_fn(library.init);
        set_memory_fraction_fn(library.memory_fraction);
        set_reset_fn([this] {
            finish_pending();
            library.reset();
        });
    }

    // Requests and frees

    c10::DataPtr allocate(size_t size) override {
        DeviceIndex device = current();
        void* memory = request(size, device, c10::cuda::getCurrentCUDAStream(device));
        return {memory, memory, raw_deleter(), c10::Device(c10::DeviceType::CUDA, device)};
    }

    void* raw_alloc(size_t size) override {
        DeviceIndex device = current();
        return request(size, device, c10::cuda::getCurrentCUDAStream(device));
    }

    void* raw_alloc_with_stream(size_t size, cudaStream_t stream) override {
        return request(size, current(), stream);
    }

    void raw_delete(void* memory) override {
        if (memory == nullptr) {
            return;
        }
        Returned returned;
        Live live;
        {
            Lock lock(mutex_);
            auto found = live_.find(memory);
            TORCH_CHECK(found != live_.end(), "Trying to free a pointer not allocated here");
            live = found->second;
            forget(found);
            if (live.block != nullptr) {
                free(live.block, returned);
            }
        }
        give(returned);
        if (live.block == nullptr) {
            library.free(memory, live.size, live.device, live.stream);
        }
    }

    void recordStream(const c10::DataPtr& pointer, c10::cuda::CUDAStream stream) override {
        void* memory = pointer.get();
        {
            Lock lock(mutex_);
            auto found = live_.find(memory);
            if (found != live_.end() && found->second.block != nullptr) {
                auto& streams = found->second.block->streams;
                if (stream.stream() != found->second.stream &&
                    std::find(streams.begin(), streams.end(), stream.stream()) == streams.end()) {
                    streams.push_back(stream.stream());
                }
                return;
            }
        }
        library.record_stream(memory, stream.stream());
    }

    void cacheInfo(DeviceIndex device, size_t* largest) override {
        uint64_t stats[22] = {};
        library.stats_get(library.process(), device, stats, sizeof stats);
        // largest_free, the 21st field, and what the device has.
        size_t of_device = 0, total = 0;
        (void)cudaMemGetInfo(&of_device, &total);
        *largest = std::max<size_t>({*largest, stats[20], of_device});
    }

    // Private pools. Some of these functions came with later versions of PyTorch, so they are not marked as overriding.

    void beginAllocateToPool(DeviceIndex device, MempoolId_t id, std::function<bool(cudaStream_t)> filter) override {
        Lock lock(mutex_);
        pool(device, id)->uses++;
        routes_.push_back({device, id, std::move(filter)});
        routed_.store(routes_.size(), std::memory_order_relaxed);
    }

    void endAllocateToPool(DeviceIndex device, MempoolId_t id) override {
        Lock lock(mutex_);
        for (auto route = routes_.rbegin(); route != routes_.rend(); ++route) {
            if (route->device == device && route->id == id) {
                routes_.erase(std::next(route).base());
                break;
            }
        }
        routed_.store(routes_.size(), std::memory_order_relaxed);
    }

    void releasePool(DeviceIndex device, MempoolId_t id) override {
        Returned returned;
        {
            Lock lock(mutex_);
            auto found = pools_.find({device, id});
            if (found == pools_.end() || found->second->uses == 0 || --found->second->uses > 0) {
                return;
            }
            auto last = found->second;
            // What other streams still use goes back by trtalloc_deallocate, which waits for their work too.
            finish_pending_of(*last, returned);
            for (auto segment = last->segments.begin(); segment != last->segments.end();) {
                Segment* it = (segment++)->second.get();
                if (it->first->state == Block::FREE && it->first->size == it->size) {
                    detach(it, returned);
                }
            }
            last->use_on_oom = last->no_split = false;
            forget_if_empty(*last);
        }
        give(returned);
    }

    void createOrIncrefPool(DeviceIndex device, MempoolId_t id, std::shared_ptr<CUDAAllocator> source = nullptr) {
        Lock lock(mutex_);
        auto it = pool(device, id);
        if (it->segments.empty() && it->uses == 0) {
            it->source = std::move(source);
        }
        it->uses++;
    }

    int getPoolUseCount(DeviceIndex device, MempoolId_t id) {
        Lock lock(mutex_);
        auto found = pools_.find({device, id});
        return found == pools_.end() ? 0 : found->second->uses;
    }

    void setUseOnOOM(DeviceIndex device, MempoolId_t id, bool use_on_oom) {
        Lock lock(mutex_);
        pool(device, id)->use_on_oom = use_on_oom;
    }

    void setNoSplit(DeviceIndex device, MempoolId_t id) {
        Lock lock(mutex_);
        pool(device, id)->no_split = true;
    }

    void markCaptureBegin(DeviceIndex) {
        Lock lock(mutex_);
        captures_++;
    }

    void markCaptureEnd(DeviceIndex) {
        Lock lock(mutex_);
        captures_--;
    }

    bool checkPoolLiveAllocations(DeviceIndex device, MempoolId_t id, const std::unordered_set<void*>& expected) {
        Lock lock(mutex_);
        auto found = pools_.find({device, id});
        TORCH_CHECK(found != pools_.end(), "Could not find pool of id");
        size_t used = 0;
        bool all = true;
        each_block(*found->second, [&](const Block& block) {
            if (block.state == Block::USED) {
                used++;
                all = all && expected.count(block.address) != 0;
            }
        });
        return all && used == expected.size();
    }

    std::shared_ptr<AllocatorState> getCheckpointState(DeviceIndex device, MempoolId_t id) override {
        Returned returned;
        auto state = std::make_shared<State>();
        {
            Lock lock(mutex_);
            finish_pending(returned);
            auto found = pools_.find({device, id});
            TORCH_CHECK(found != pools_.end(), "Could not find pool of id");
            state->id = id;
            for (auto& segment : found->second->segments) {
                std::vector<State::Part> parts;
                for (Block* block = segment.second->first; block != nullptr; block = block->after) {
                    bool used = block->state == Block::USED;
                    parts.push_back({block->size, block->requested, used, used ? block->streams : decltype(block->streams){}});
                }
                state->segments.emplace_back(segment.first, std::move(parts));
            }
        }
        give(returned);
        return state;
    }

    CheckpointDelta setCheckpointPoolState(DeviceIndex device, std::shared_ptr<AllocatorState> saved) override {
        auto state = std::dynamic_pointer_cast<State>(saved);
        TORCH_CHECK(state != nullptr, "a checkpoint of another allocator");
        Returned returned;
        CheckpointDelta delta;
        {
            Lock lock(mutex_);
            auto found = pools_.find({device, state->id});
            TORCH_CHECK(found != pools_.end() && found->second->uses > 0, "Could not find pool of id");
            auto pool = found->second;
            if (used_elsewhere(*pool)) {
                lock.unlock();
                C10_CUDA_CHECK(cudaDeviceSynchronize());
                lock.lock();
                finish_pending_of(*pool, returned);
            }
            for (auto& segment : state->segments) {
                TORCH_CHECK(pool->segments.count(segment.first) == 1, "a segment of the checkpoint is gone");
            }
            std::vector<Block*> used;
            each_block(*pool, [&](Block& block) {
                if (block.state == Block::USED) {
                    used.push_back(&block);
                }
            });
            for (Block* block : used) {
                delta.ptrs_freed.push_back(block->address);
                forget(live_.find(block->address));
                put_back(block, returned);
            }
            for (auto& segment : state->segments) {
                Segment* it = pool->segments[segment.first].get();
                pool->free.erase(it->first);
                Block* block = it->first;
                for (size_t i = 0; i < segment.second.size(); i++) {
                    const State::Part& part = segment.second[i];
                    Block* rest = nullptr;
                    if (part.size < block->size) {
                        rest = divide(block, part.size);
                    }
                    if (part.used) {
                        use(block, part.requested);
                        block->streams = part.streams;
                        delta.dataptrs_allocd.emplace_back(
                            block->address, block->address, raw_deleter(), c10::Device(c10::DeviceType::CUDA, device));
                    } else {
                        pool->free.insert(block);
                    }
                    block = rest;
                }
            }
        }
        give(returned);
        return delta;
    }

    // PyTorch calls it with the id of a MemPool that ends, whose memory is the library's again by then: no other memory is
    // returned to the driver.
    void emptyCache(MempoolId_t id = {0, 0}) {
        if (id == MempoolId_t{0, 0}) {
            Base::emptyCache();
        } else {
            finish_pending();
        }
    }

    bool isHistoryEnabled() {
        return false;
    }

    void attachOutOfMemoryObserver(c10::cuda::CUDACachingAllocator::OutOfMemoryObserver observer) override {
        Lock lock(mutex_);
        observers_.push_back(std::move(observer));
    }

    // For Python

    Counters counters(DeviceIndex device) {
        Lock lock(mutex_);
        return counters_[device];
    }

    template <class F>
    void each_block(F&& visit) {
        Lock lock(mutex_);
        for (auto& entry : pools_) {
            each_block(*entry.second, visit);
        }
    }

  private:
    static DeviceIndex current() {
        DeviceIndex device = -1;
        C10_CUDA_CHECK(c10::cuda::GetDevice(&device));
        return device;
    }

    void* request(size_t size, DeviceIndex device, cudaStream_t stream) {
        if (size == 0) {
            return nullptr;
        }
        // As PyTorch itself says it.
        TORCH_CHECK_WITH(
            OutOfMemoryError, size < size_t{1} << 60, "CUDA out of memory. Tried to allocate more than 1EB memory.");
        std::shared_ptr<Pool> routed;
        try {
            if (routed_.load(std::memory_order_relaxed) != 0) {
                Lock lock(mutex_);
                routed = route_of(device, stream);
                if (routed != nullptr) {
                    return request_in(lock, routed, size, stream);
                }
            }
            void* memory = from_library(size, device, stream);
            Lock lock(mutex_);
            live_[memory] = {size, device, stream, nullptr};
            counters_[device].allocated += rounded(size, ROUND);
            return memory;
        } catch (const c10::OutOfMemoryError&) {
            // A private pool gets no block of another one.
            void* memory = routed == nullptr ? last_resort(size, device, stream) : nullptr;
            if (memory != nullptr) {
                return memory;
            }
            notify(device);
            throw;
        }
    }

    // The pool to which PyTorch routes a request. The last route counts, as in contexts within contexts.
    std::shared_ptr<Pool> route_of(DeviceIndex device, cudaStream_t stream) {
        for (auto route = routes_.rbegin(); route != routes_.rend(); ++route) {
            if (route->device == device && route->filter(stream)) {
                return pool(device, route->id);
            }
        }
        return nullptr;
    }

    void* from_library(size_t size, DeviceIndex device, cudaStream_t stream) {
        try {
            return library.malloc_or_throw(size, device, stream);
        } catch (const std::runtime_error& error) {
            // The library does not know the constructor of this PyTorch's own exception.
            if (library.last_status() != OUT_OF_MEMORY) {
                throw;
            }
            throw c10::OutOfMemoryError({__func__, __FILE__, __LINE__}, error.what());
        }
    }

    // Memory of the pools that MemPool(use_on_oom=True) made.
    void* last_resort(size_t size, DeviceIndex device, cudaStream_t stream) {
        Lock lock(mutex_);
        for (auto& entry : pools_) {
            if (entry.second->device == device && entry.second->use_on_oom) {
                if (Block* block = fitting(*entry.second, size, stream)) {
                    return hand_out(block, size);
                }
            }
        }
        return nullptr;
    }

    void notify(DeviceIndex device) {
        std::vector<c10::cuda::CUDACachingAllocator::OutOfMemoryObserver> observers;
        {
            Lock lock(mutex_);
            observers = observers_;
        }
        if (observers.empty()) {
            return;
        }
        uint64_t stats[20] = {};
        library.stats_get(library.process(), device, stats, sizeof stats);
        for (auto& observer : observers) {
            observer(device, stats[0], stats[18], stats[17]);
        }
    }

    template <class F>
    static void each_block(const Pool& pool, F&& visit) {
        for (auto& segment : pool.segments) {
            for (Block* block = segment.second->first; block != nullptr; block = block->after) {
                visit(*block);
            }
        }
    }

    // Whether streams other than the blocks' own may still use blocks of the pool.
    static bool used_elsewhere(const Pool& pool) {
        bool found = false;
        each_block(pool, [&](const Block& block) { found |= !block.streams.empty(); });
        return found;
    }

    std::shared_ptr<Pool> pool(DeviceIndex device, MempoolId_t id) {
        auto& entry = pools_[{device, id}];
        if (entry == nullptr) {
            entry = std::make_shared<Pool>();
            entry->id = id;
            entry->device = device;
        }
        return entry;
    }

    void* request_in(Lock& lock, const std::shared_ptr<Pool>& pool, size_t size, cudaStream_t stream) {
        Returned returned;
        finish_pending(returned);
        void* memory = nullptr;
        if (Block* block = fitting(*pool, size, stream)) {
            memory = hand_out(block, size);
            lock.unlock();
            give(returned);
            return memory;
        }
        lock.unlock();
        give(returned);
        auto segment = new_segment(pool, size, stream);
        lock.lock();
        Block* block = segment->first = new Block{segment.get(), segment->address, segment->size};
        Counters& counters = counters_[pool->device];
        if (pool->source == nullptr) {
            counters.held += segment->size;
            counters.segments_allocated++;
        }
        pool->free.insert(block);
        char* address = segment->address;
        pool->segments.emplace(address, std::move(segment));
        return hand_out(block, size);
    }

    std::unique_ptr<Segment> new_segment(const std::shared_ptr<Pool>& pool, size_t size, cudaStream_t stream) {
        bool small = size <= SMALL;
        size_t least = rounded(size, 2 * MIB);
        size_t whole = small ? SMALL_SEGMENT : size < MIDDLE ? MIDDLE_SEGMENT : least;
        void* memory = nullptr;
        if (pool->source != nullptr) {
            memory = pool->source->raw_alloc_with_stream(whole, stream);
            TORCH_CHECK_WITH(OutOfMemoryError, memory != nullptr, "CUDA out of memory. The MemPool's allocator returned no memory");
        } else {
            if (whole > least) {
                memory = library.malloc(whole, pool->device, stream);
            }
            if (memory == nullptr) {
                whole = least;
                memory = from_library(whole, pool->device, stream);
            }
        }
        auto segment = std::make_unique<Segment>();
        *segment = {pool, static_cast<char*>(memory), whole, stream, small, nullptr};
        return segment;
    }

    // The smallest free block of that size or more, of the same stream.
    Block* fitting(Pool& pool, size_t size, cudaStream_t stream) {
        Segment like{nullptr, nullptr, 0, stream, size <= SMALL, nullptr};
        Block least{&like, nullptr, rounded(size, ROUND)};
        auto found = pool.free.lower_bound(&least);
        if (found == pool.free.end() || (*found)->segment->stream != stream || (*found)->segment->small != like.small) {
            return nullptr;
        }
        return *found;
    }

    void* hand_out(Block* block, size_t size) {
        Pool& pool = *block->segment->pool;
        size_t needed = rounded(size, ROUND), rest = block->size - needed;
        pool.free.erase(block);
        if (!pool.no_split && (block->segment->small ? rest >= ROUND : rest > SMALL)) {
            pool.free.insert(divide(block, needed));
        }
        use(block, size);
        return block->address;
    }

    Block* divide(Block* block, size_t size) {
        Block* rest = new Block{block->segment, block->address + size, block->size - size};
        rest->before = block;
        rest->after = block->after;
        if (rest->after != nullptr) {
            rest->after->before = rest;
        }
        block->after = rest;
        block->size = size;
        return rest;
    }

    void use(Block* block, size_t requested) {
        const Segment& segment = *block->segment;
        block->state = Block::USED;
        block->requested = requested;
        live_[block->address] = {requested, segment.pool->device, segment.stream, block};
        Counters& counters = counters_[segment.pool->device];
        counters.allocated += block->size;
        counters.used += block->size;
        counters.blocks_allocated++;
    }

    void forget(std::unordered_map<void*, Live>::iterator found) {
        const Live& live = found->second;
        Counters& counters = counters_[live.device];
        if (live.block != nullptr) {
            counters.freed += live.block->size;
            counters.used -= live.block->size;
            counters.blocks_freed++;
        } else {
            counters.freed += rounded(live.size, ROUND);
        }
        live_.erase(found);
    }

    bool capturing() const {
        return decltype(reports_captures<Base>(0))::value ? captures_ > 0 : !routes_.empty();
    }

    // A block of a private pool, which `live_` no longer has.
    void free(Block* block, Returned& returned) {
        if (block->streams.empty() || block->segment->pool->uses == 0) {
            put_back(block, returned);
            return;
        }
        block->state = Block::PENDING;
        pending_.push_back({block, {}});
        if (!capturing()) {
            record(pending_.back());
        }
    }

    // Where an event is refused, as in a capture that PyTorch did not begin, the next call tries it again.
    void record(Pending& pending) {
        int before = 0;
        bool recorded = cudaGetDevice(&before) == cudaSuccess &&
            cudaSetDevice(pending.block->segment->pool->device) == cudaSuccess;
        for (cudaStream_t stream : pending.block->streams) {
            cudaEvent_t event = nullptr;
            if (!recorded || cudaEventCreateWithFlags(&event, cudaEventDisableTiming) != cudaSuccess) {
                recorded = false;
                break;
            }
            pending.events.push_back(event);
            recorded = cudaEventRecord(event, stream) == cudaSuccess;
        }
        if (!recorded) {
            destroy(pending);
            (void)cudaGetLastError();
        }
        (void)cudaSetDevice(before);
    }

    void finish_pending() {
        Returned returned;
        {
            Lock lock(mutex_);
            finish_pending(returned);
        }
        give(returned);
    }

    void finish_pending(Returned& returned) {
        if (pending_.empty() || capturing()) {
            return;
        }
        for (size_t i = pending_.size(); i-- > 0;) {
            if (pending_[i].events.empty()) {
                record(pending_[i]);
            }
            bool done = !pending_[i].events.empty();
            for (cudaEvent_t event : pending_[i].events) {
                if (cudaEventQuery(event) != cudaSuccess) {
                    (void)cudaGetLastError();
                    done = false;
                    break;
                }
            }
            if (done) {
                Block* block = pending_[i].block;
                drop_pending(i);
                put_back(block, returned);
            }
        }
    }

    // Those of a pool, whether their work has completed or not.
    void finish_pending_of(const Pool& pool, Returned& returned) {
        for (size_t i = pending_.size(); i-- > 0;) {
            Block* block = pending_[i].block;
            if (block->segment->pool.get() == &pool) {
                drop_pending(i);
                put_back(block, returned);
            }
        }
    }

    void destroy(Pending& pending) {
        for (cudaEvent_t event : pending.events) {
            (void)cudaEventDestroy(event);
        }
        pending.events.clear();
    }

    void drop_pending(size_t index) {
        destroy(pending_[index]);
        pending_.erase(pending_.begin() + static_cast<ptrdiff_t>(index));
    }

    void put_back(Block* block, Returned& returned) {
        Segment* segment = block->segment;
        auto pool = segment->pool;
        block->state = Block::FREE;
        block->streams.clear();
        block->requested = 0;
        if (block->before != nullptr && block->before->state == Block::FREE) {
            block = block->before;
            pool->free.erase(block);
            join(block);
        }
        if (block->after != nullptr && block->after->state == Block::FREE) {
            pool->free.erase(block->after);
            join(block);
        }
        pool->free.insert(block);
        if (pool->uses == 0 && block->size == segment->size) {
            detach(segment, returned);
            forget_if_empty(*pool);
        }
    }

    // A block and the one after it.
    void join(Block* block) {
        Block* after = block->after;
        block->size += after->size;
        block->after = after->after;
        if (block->after != nullptr) {
            block->after->before = block;
        }
        delete after;
    }

    void detach(Segment* segment, Returned& returned) {
        auto pool = segment->pool;
        pool->free.erase(segment->first);
        delete segment->first;
        Counters& counters = counters_[pool->device];
        if (pool->source == nullptr) {
            counters.held -= segment->size;
            counters.segments_freed++;
        }
        returned.emplace_back(pool->source, segment->address);
        pool->segments.erase(segment->address);
    }

    void forget_if_empty(const Pool& pool) {
        auto found = pools_.find({pool.device, pool.id});
        if (pool.uses == 0 && pool.segments.empty() && found != pools_.end() && found->second.get() == &pool) {
            pools_.erase(found);
        }
    }

    void give(Returned& returned) {
        for (auto& [source, address] : returned) {
            if (source != nullptr) {
                source->raw_delete(address);
            } else {
                library.deallocate(library.process(), address);
            }
        }
        returned.clear();
    }

    struct Route {
        DeviceIndex device;
        MempoolId_t id;
        std::function<bool(cudaStream_t)> filter;
    };

    const Library library;
    std::mutex mutex_;
    std::unordered_map<void*, Live> live_;
    std::map<std::pair<DeviceIndex, MempoolId_t>, std::shared_ptr<Pool>> pools_;
    std::vector<Route> routes_;
    std::atomic<size_t> routed_{0};
    std::vector<Pending> pending_;
    std::map<DeviceIndex, Counters> counters_;
    std::vector<c10::cuda::CUDACachingAllocator::OutOfMemoryObserver> observers_;
    int captures_ = 0;
};

// As long as the process: PyTorch's tensors may exist until it ends.
Allocator* installed = nullptr;

}  // namespace

extern "C" {

// Makes it PyTorch's allocator. Returns 0, or 1 with the reason in `reason`.
__attribute__((visibility("default"))) int trtalloc_torch_install(const Library* library, char* reason, size_t size) {
    try {
        auto allocator = std::make_shared<Allocator>(*library);
        allocator->Base::init(0);
        torch::cuda::CUDAPluggableAllocator::changeCurrentAllocator(allocator);
        installed = allocator.get();
        return 0;
    } catch (const std::exception& error) {
        std::string text = error.what();
        text.resize(std::min(text.size(), size - 1));
        std::copy(text.begin(), text.end(), reason);
        reason[text.size()] = 0;
        return 1;
    }
}

// Writes a device's Counters.
__attribute__((visibility("default"))) void trtalloc_torch_counters(int device, Counters* out) {
    *out = installed->counters(static_cast<DeviceIndex>(device));
}

// Writes eleven numbers for each block of the private pools, at most `most` blocks. Returns how many there are.
__attribute__((visibility("default"))) size_t trtalloc_torch_blocks(uint64_t* out, size_t most) {
    size_t count = 0;
    installed->each_block([&](const Block& block) {
        if (count++ >= most) {
            return;
        }
        const Segment& segment = *block.segment;
        const Pool& pool = *segment.pool;
        for (uint64_t number : {
                 uint64_t(pool.device), uint64_t(pool.id.first), uint64_t(pool.id.second), uint64_t(segment.address),
                 uint64_t(segment.size), uint64_t(segment.stream), uint64_t(segment.small), uint64_t(block.address),
                 uint64_t(block.size), uint64_t(block.requested), uint64_t(block.state)}) {
            *out++ = number;
        }
    });
    return count;
}

}  // extern "C"
