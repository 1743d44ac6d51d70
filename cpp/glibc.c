/* Lets the library and the command run with glibc 2.28 when they are built with a newer one: the feature `portable`.

   glibc 2.29 to 2.35 gave new versions to functions that had not changed, or that had moved from libpthread and libdl into
   libc. The old versions are still there. The linker turns each reference to NAME, also those in Rust's and C++'s
   libraries, into one to __wrap_NAME (`--wrap`, build.rs), and these functions call the old version of NAME. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <link.h>
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

/* The version that a symbol has had since it was first there. */
#if defined(__x86_64__)
#define SINCE(x86_64) x86_64
/* What the old functions of stat want as their first argument: the layout of struct stat. */
#define STAT_LAYOUT 1
#elif defined(__aarch64__)
#define SINCE(x86_64) "GLIBC_2.17"
#define STAT_LAYOUT 0
#else
#error "the feature portable is for x86-64 and aarch64"
#endif
#define FIRST SINCE("GLIBC_2.2.5")

/* Declares old_NAME, the symbol `symbol` in its version `version`. */
#define DECLARE(result, name, parameters, symbol, version) \
    result old_##name parameters;                          \
    __asm__(".symver old_" #name ", " symbol "@" version);

/* Calls of `name` go to its version `version`. */
#define OLD(result, name, parameters, arguments, version) \
    DECLARE(result, name, parameters, #name, version)     \
    result __wrap_##name parameters;                      \
    result __wrap_##name parameters { return old_##name arguments; }

typedef pthread_attr_t attr;
typedef void* (*start)(void*);
typedef void (*dies)(void*);

OLD(int, pthread_create, (pthread_t* thread, const attr* a, start body, void* data), (thread, a, body, data), FIRST)
OLD(int, pthread_join, (pthread_t thread, void** result), (thread, result), FIRST)
OLD(int, pthread_detach, (pthread_t thread), (thread), FIRST)
OLD(int, pthread_once, (pthread_once_t* once, void (*body)(void)), (once, body), FIRST)
OLD(int, pthread_key_create, (pthread_key_t* key, dies body), (key, body), FIRST)
OLD(int, __pthread_key_create, (pthread_key_t* key, dies body), (key, body), FIRST)
OLD(int, pthread_key_delete, (pthread_key_t key), (key), FIRST)
OLD(void*, pthread_getspecific, (pthread_key_t key), (key), FIRST)
OLD(int, pthread_setspecific, (pthread_key_t key, const void* value), (key, value), FIRST)
OLD(int, pthread_sigmask, (int how, const sigset_t* set, sigset_t* old), (how, set, old), FIRST)
OLD(int, pthread_setname_np, (pthread_t thread, const char* name), (thread, name), SINCE("GLIBC_2.12"))
OLD(int, pthread_getattr_np, (pthread_t thread, attr* a), (thread, a), FIRST)
OLD(int, pthread_attr_getstack, (const attr* a, void** base, size_t* size), (a, base, size), FIRST)
OLD(int, pthread_attr_setstacksize, (attr* a, size_t size), (a, size), FIRST)
OLD(int, pthread_attr_getguardsize, (const attr* a, size_t* size), (a, size), FIRST)

OLD(void*, dlopen, (const char* file, int mode), (file, mode), FIRST)
OLD(int, dlclose, (void* library), (library), FIRST)
OLD(char*, dlerror, (void), (), FIRST)
OLD(int, dladdr, (const void* address, Dl_info* info), (address, info), FIRST)
OLD(int, dladdr1, (const void* address, Dl_info* info, void** extra, int flags), (address, info, extra, flags),
    SINCE("GLIBC_2.3.3"))
OLD(int, dlinfo, (void* library, int request, void* out), (library, request, out), SINCE("GLIBC_2.3.3"))
OLD(void*, dlvsym, (void* library, const char* name, const char* version), (library, name, version), FIRST)

/* 2.29 dropped an error handler that programs could set. */
OLD(double, pow, (double base, double exponent), (base, exponent), FIRST)
OLD(double, exp, (double x), (x), FIRST)
OLD(double, exp2, (double x), (x), FIRST)
OLD(double, log, (double x), (x), FIRST)
OLD(double, log2, (double x), (x), FIRST)

/* Before 2.33 these were functions that each program had a copy of. */
DECLARE(int, stat, (int layout, const char* path, struct stat* out), "__xstat", FIRST)
DECLARE(int, lstat, (int layout, const char* path, struct stat* out), "__lxstat", FIRST)
DECLARE(int, fstat, (int layout, int file, struct stat* out), "__fxstat", FIRST)
DECLARE(int, fstatat, (int layout, int folder, const char* path, struct stat* out, int flags), "__fxstatat",
        SINCE("GLIBC_2.4"))

#define STAT(name, parameters, ...)  \
    int __wrap_##name parameters;    \
    int __wrap_##name##64 parameters; \
    int __wrap_##name parameters { return old_##name(STAT_LAYOUT, __VA_ARGS__); } \
    int __wrap_##name##64 parameters { return old_##name(STAT_LAYOUT, __VA_ARGS__); }

STAT(stat, (const char* path, struct stat* out), path, out)
STAT(lstat, (const char* path, struct stat* out), path, out)
STAT(fstat, (int file, struct stat* out), file, out)
STAT(fstatat, (int folder, const char* path, struct stat* out, int flags), folder, path, out, flags)

pid_t __wrap_gettid(void);
pid_t __wrap_gettid(void) { return (pid_t)syscall(SYS_gettid); }

/* libstdc++ leaves out atomic operations where this is not 0. */
char __libc_single_threaded = 0;

#if defined(DLFO_STRUCT_HAS_EH_DBASE) && !DLFO_STRUCT_HAS_EH_DBASE
/* The unwinder of GCC 12 and later asks this function of glibc 2.35 where the tables of a function are. */
static int has_address(struct dl_phdr_info* info, size_t size, void* data) {
    struct dl_find_object* found = data;
    const char* address = found->dlfo_map_start;
    const char *first = NULL, *end = NULL, *tables = NULL;
    (void)size;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr)* part = &info->dlpi_phdr[i];
        const char* at = (const char*)info->dlpi_addr + part->p_vaddr;
        if (part->p_type == PT_LOAD && address >= at && address < at + part->p_memsz) {
            first = at;
            end = at + part->p_memsz;
        } else if (part->p_type == PT_GNU_EH_FRAME) {
            tables = at;
        }
    }
    if (first == NULL || tables == NULL) return 0;
    found->dlfo_map_start = (void*)first;
    found->dlfo_map_end = (void*)end;
    found->dlfo_eh_frame = (void*)tables;
    return 1;
}

int __wrap__dl_find_object(void* address, struct dl_find_object* out);
int __wrap__dl_find_object(void* address, struct dl_find_object* out) {
    *out = (struct dl_find_object){.dlfo_map_start = address};
    return dl_iterate_phdr(has_address, out) ? 0 : -1;
}
#endif
