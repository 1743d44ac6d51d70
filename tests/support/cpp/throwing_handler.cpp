// An exception that leaves an out-of-memory handler ends the process, also where the caller would catch it.
#include <trtalloc/trtalloc.hpp>

#include <cstdint>
#include <stdexcept>

namespace {

bool throws(void*, std::int32_t, std::uint64_t) { throw std::runtime_error("out of a handler"); }

}  // namespace

int main() {
    trtalloc::Allocator memory{"driver=sim,log=off"};
    memory.on_oom(throws, nullptr);
    try {
        trtalloc_allocate(memory.get(), std::uint64_t{1} << 40, 0, 0);
    } catch (std::exception const&) {
        return 1;
    }
    return 2;
}
