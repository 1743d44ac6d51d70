// The C++ face as far as it needs no device: what cannot be made throws, and says why.
#include <cstring>
#include <type_traits>
#include <trtalloc/trtalloc.hpp>

static_assert(!std::is_copy_constructible_v<trtalloc::Allocator>);
static_assert(std::is_nothrow_move_constructible_v<trtalloc::Allocator>);

int main() {
    try {
        trtalloc::Allocator allocator{"limit=lots"};
    } catch (trtalloc::Error const& error) {
        return error.status() == TRTALLOC_STATUS_INVALID_ARGUMENT && std::strstr(error.what(), "lots") ? 0 : 1;
    }
    return 2;
}
