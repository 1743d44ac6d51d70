// What rmm.hpp needs of RMM's header of that name.
#pragma once

#include <new>

namespace rmm {

struct bad_alloc : std::bad_alloc {
    explicit bad_alloc(char const*) {}
};
struct out_of_memory : bad_alloc {
    using bad_alloc::bad_alloc;
};

}  // namespace rmm
