// A pool for GPU memory from C++17, without TensorRT: it closes with its owner, errors are exceptions, and its limit
// holds.
//
//     ./pool                 on the GPU that is here
//     ./pool driver=sim      on the simulated device
#include <cstdint>
#include <iostream>
#include <trtalloc/trtalloc.hpp>

int main(int argc, char** argv) try {
    trtalloc::Allocator memory{argc > 1 ? argv[1] : ""};
    memory.set_limit(std::uint64_t{256} << 20);

    void* const stream = nullptr;  // a cudaStream_t; null is the default stream
    void* const weights = memory.allocate(std::uint64_t{200} << 20);
    void* const scratch = memory.allocate_async(std::uint64_t{100} << 20, stream);
    // Functions that allocate return a null pointer on failure, as TensorRT requires.
    std::cout << "200 MiB: " << (weights != nullptr ? "yes" : "no") << '\n'
              << "100 MiB more, with a limit of 256: " << (scratch != nullptr ? "yes" : "no") << '\n';
    if (scratch == nullptr) {
        std::cout << trtalloc_last_error() << '\n';
    }

    memory.deallocate_async(scratch, stream);
    memory.deallocate(weights);
    memory.trim();
    auto const stats = memory.stats();
    std::cout << "highest in use " << (stats.allocated_peak >> 20) << " MiB, now reserved " << stats.reserved << " bytes\n";
    return 0;
} catch (trtalloc::Error const& error) {
    std::cerr << error.what() << '\n';
    return 1;
}
