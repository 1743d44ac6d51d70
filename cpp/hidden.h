// Only bridges include this, as the last header: the declarations of the generated file after it are hidden.
//
// Rust would export its side of the bridge from the shared library, because cxx gives it unmangled names. A symbol that
// one object of the library declares hidden is hidden in the library. The headers that cxx itself includes come before,
// so that the standard library's names stay as they are.
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
