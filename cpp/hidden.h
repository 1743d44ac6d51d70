// Included last of the headers by a bridge, and by nothing else: what the generated file then declares is hidden.
//
// Rust would export its side of the bridge from the shared library, for cxx gives it unmangled names; but a symbol that
// one object of the library calls hidden is hidden in the library. What cxx itself includes comes before, so that the
// standard library's names stay as they are.
#include <algorithm>
#include <array>
#include <cassert>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <initializer_list>
#include <iterator>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#pragma GCC visibility push(hidden)
