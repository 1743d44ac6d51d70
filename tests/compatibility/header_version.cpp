// A shared library that uses trtalloc.hpp of one version of trtalloc, for a process that has another one with another version. The
// structure of the statistics has more fields in later versions: each library gets exactly its own.
#include <trtalloc/trtalloc.hpp>

#include <cstdio>
#include <cstring>
#include <new>

extern "C" int generation_check();
extern "C" int generation_check() {
    constexpr unsigned char unwritten = 0x55;
    constexpr std::size_t behind = 256;
    trtalloc::Allocator const memory{"driver=sim,sim_memory=1GiB"};
    alignas(trtalloc_stats) unsigned char bytes[sizeof(trtalloc_stats) + behind];
    std::memset(bytes, unwritten, sizeof bytes);
    ::new (static_cast<void*>(bytes)) trtalloc_stats(memory.stats());
    for (std::size_t i = sizeof(trtalloc_stats); i < sizeof bytes; ++i) {
        if (bytes[i] != unwritten) {
            std::fprintf(stderr, "%zu bytes: byte %zu behind them was written\n", sizeof(trtalloc_stats), i);
            return __LINE__;
        }
    }
    if (bytes[sizeof(trtalloc_stats) - 1] == unwritten) {
        std::fprintf(stderr, "%zu bytes: the last one was not written\n", sizeof(trtalloc_stats));
        return __LINE__;
    }
    return 0;
}
