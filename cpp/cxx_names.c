// Hides cxx's own functions. Rust exports them from a library that it optimizes as a whole: there they are not in an archive, whose
// names the linker hides. Another library that uses cxx would then call ours, and they would be in the library even if nothing
// calls them. A symbol that one object of the library declares hidden is hidden in the library. build.rs links this into the
// library alone.

#define HIDE(name) extern char const cxxbridge1$##name __attribute__((weak, visibility("hidden")));
#define ADDRESS(name) &cxxbridge1$##name,

#define VECTOR(X, type)              \
    X(rust_vec$##type##$capacity)    \
    X(rust_vec$##type##$data_const)  \
    X(rust_vec$##type##$data_mut)    \
    X(rust_vec$##type##$drop)        \
    X(rust_vec$##type##$len)         \
    X(rust_vec$##type##$new)         \
    X(rust_vec$##type##$reserve_total) \
    X(rust_vec$##type##$set_len)     \
    X(rust_vec$##type##$truncate)

#define NAMES(X)                  \
    X(exception)                  \
    X(slice$len)                  \
    X(slice$new)                  \
    X(slice$ptr)                  \
    X(str$from)                   \
    X(str$len)                    \
    X(str$new)                    \
    X(str$ptr)                    \
    X(str$ref)                    \
    X(string$capacity)            \
    X(string$clone)               \
    X(string$drop)                \
    X(string$from_utf16)          \
    X(string$from_utf16_lossy)    \
    X(string$from_utf8)           \
    X(string$from_utf8_lossy)     \
    X(string$len)                 \
    X(string$new)                 \
    X(string$ptr_const)           \
    X(string$ptr_mut)             \
    X(string$reserve_additional)  \
    X(string$reserve_total)       \
    VECTOR(X, bool)               \
    VECTOR(X, char)               \
    VECTOR(X, f32)                \
    VECTOR(X, f64)                \
    VECTOR(X, i16)                \
    VECTOR(X, i32)                \
    VECTOR(X, i64)                \
    VECTOR(X, i8)                 \
    VECTOR(X, isize)              \
    VECTOR(X, str)                \
    VECTOR(X, string)             \
    VECTOR(X, u16)                \
    VECTOR(X, u32)                \
    VECTOR(X, u64)                \
    VECTOR(X, u8)                 \
    VECTOR(X, usize)

NAMES(HIDE)

// A declaration that nothing uses is not in the object. Nothing uses this table, so the linker leaves it out.
__attribute__((used)) static char const *const table[] = {NAMES(ADDRESS)};
