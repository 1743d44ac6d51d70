// The functions of libgcc_s.so.1 that panics and exceptions need, each looked up when it is first called. So the loader does not
// have to load libgcc_s at the start of every program that preloads the library, which would take longer than all else that it
// does for it. There is still one unwinder in a process: exceptions of the program pass through the library's frames, and an
// unwinder's context must only be read by that unwinder's own functions. build.rs links this into the library alone.

#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <unistd.h>

// X(number, name, version)
#define FUNCTIONS(X)                                   \
    X(0, _Unwind_Backtrace, "GCC_3.3")                 \
    X(1, _Unwind_DeleteException, "GCC_3.0")           \
    X(2, _Unwind_FindEnclosingFunction, "GCC_3.3")     \
    X(3, _Unwind_ForcedUnwind, "GCC_3.0")              \
    X(4, _Unwind_GetCFA, "GCC_3.3")                    \
    X(5, _Unwind_GetDataRelBase, "GCC_3.0")            \
    X(6, _Unwind_GetGR, "GCC_3.0")                     \
    X(7, _Unwind_GetIP, "GCC_3.0")                     \
    X(8, _Unwind_GetIPInfo, "GCC_4.2.0")               \
    X(9, _Unwind_GetLanguageSpecificData, "GCC_3.0")   \
    X(10, _Unwind_GetRegionStart, "GCC_3.0")           \
    X(11, _Unwind_GetTextRelBase, "GCC_3.0")           \
    X(12, _Unwind_RaiseException, "GCC_3.0")           \
    X(13, _Unwind_Resume, "GCC_3.0")                   \
    X(14, _Unwind_Resume_or_Rethrow, "GCC_3.3")        \
    X(15, _Unwind_SetGR, "GCC_3.0")                    \
    X(16, _Unwind_SetIP, "GCC_3.0")

#define COUNT 17

#define HIDDEN __attribute__((visibility("hidden")))

static const struct {
    const char *name, *version;
} functions[COUNT] = {
#define X(number, name, version) [number] = {#name, version},
    FUNCTIONS(X)
#undef X
};

// The addresses found so far, which the instructions below read.
HIDDEN void *trtalloc_unwinder[COUNT];

// Looks a function up. libgcc_s is never unloaded, since frames of it may lie on any stack.
HIDDEN __attribute__((used)) void *trtalloc_find_unwinder(unsigned number) {
    static const char missing[] = "trtalloc: error: libgcc_s.so.1 cannot be loaded, and a panic or an exception needs it\n";
    void *library = dlopen("libgcc_s.so.1", RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    void *found = library ? dlvsym(library, functions[number].name, functions[number].version) : NULL;
    if (!found) {
        ssize_t written = write(STDERR_FILENO, missing, sizeof missing - 1);
        (void)written;
        abort();
    }
    __atomic_store_n(&trtalloc_unwinder[number], found, __ATOMIC_RELEASE);
    return found;
}

// Each function jumps to the one of libgcc_s. A call would leave a frame of its own, and some of these functions begin their walk
// at their caller. The arguments are kept while the function is looked up; none has more than three.
#if defined(__x86_64__)
#define X(number, name, version)                       \
    __asm__(".pushsection .text." #name ",\"ax\",@progbits\n" \
            ".globl __wrap_" #name "\n"                       \
            ".hidden __wrap_" #name "\n"                      \
            ".type __wrap_" #name ", @function\n"             \
            ".p2align 4\n"                             \
            "__wrap_" #name ":\n"                             \
            ".cfi_startproc\n"                         \
            "endbr64\n"                                \
            "movq trtalloc_unwinder+8*" #number "(%rip), %rax\n" \
            "testq %rax, %rax\n"                       \
            "jne 1f\n"                                 \
            "pushq %rdi\n"                             \
            ".cfi_adjust_cfa_offset 8\n"               \
            "pushq %rsi\n"                             \
            ".cfi_adjust_cfa_offset 8\n"               \
            "pushq %rdx\n"                             \
            ".cfi_adjust_cfa_offset 8\n"               \
            "movl $" #number ", %edi\n"                \
            "call trtalloc_find_unwinder\n"            \
            "popq %rdx\n"                              \
            ".cfi_adjust_cfa_offset -8\n"              \
            "popq %rsi\n"                              \
            ".cfi_adjust_cfa_offset -8\n"              \
            "popq %rdi\n"                              \
            ".cfi_adjust_cfa_offset -8\n"              \
            "1: jmp *%rax\n"                           \
            ".cfi_endproc\n"                           \
            ".size __wrap_" #name ", . - __wrap_" #name "\n"         \
            ".popsection\n");
#elif defined(__aarch64__)
#define X(number, name, version)                       \
    __asm__(".pushsection .text." #name ",\"ax\",%progbits\n" \
            ".globl __wrap_" #name "\n"                       \
            ".hidden __wrap_" #name "\n"                      \
            ".type __wrap_" #name ", %function\n"             \
            ".p2align 4\n"                             \
            "__wrap_" #name ":\n"                             \
            ".cfi_startproc\n"                         \
            "hint #34\n"                               \
            "adrp x16, trtalloc_unwinder+8*" #number "\n" \
            "ldr x16, [x16, #:lo12:trtalloc_unwinder+8*" #number "]\n" \
            "cbnz x16, 1f\n"                           \
            "stp x29, x30, [sp, #-48]!\n"              \
            ".cfi_adjust_cfa_offset 48\n"              \
            ".cfi_rel_offset x29, 0\n"                 \
            ".cfi_rel_offset x30, 8\n"                 \
            "mov x29, sp\n"                            \
            "stp x0, x1, [sp, #16]\n"                  \
            "str x2, [sp, #32]\n"                      \
            "mov w0, #" #number "\n"                   \
            "bl trtalloc_find_unwinder\n"              \
            "mov x16, x0\n"                            \
            "ldr x2, [sp, #32]\n"                      \
            "ldp x0, x1, [sp, #16]\n"                  \
            "ldp x29, x30, [sp], #48\n"                \
            ".cfi_restore x30\n"                       \
            ".cfi_restore x29\n"                       \
            ".cfi_adjust_cfa_offset -48\n"             \
            "1: br x16\n"                              \
            ".cfi_endproc\n"                           \
            ".size __wrap_" #name ", . - __wrap_" #name "\n"         \
            ".popsection\n");
#endif
FUNCTIONS(X)
