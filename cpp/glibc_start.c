/* How the command starts with glibc 2.28 when it is built with a newer one; see glibc.c. */

typedef int (*main_function)(int, char**, char**);
typedef void (*init_function)(int, char**, char**);
typedef void (*end_function)(void);

#if defined(__x86_64__)
__asm__(".symver old_start, __libc_start_main@GLIBC_2.2.5");
#else
__asm__(".symver old_start, __libc_start_main@GLIBC_2.17");
#endif
int old_start(main_function, int, char**, init_function, end_function, end_function, void*);

void _init(void);
extern init_function __init_array_start[] __attribute__((visibility("hidden")));
extern init_function __init_array_end[] __attribute__((visibility("hidden")));

/* From 2.34 on glibc calls these itself, where a program does not name a function that does. */
static void initialize(int count, char** arguments, char** environment) {
    _init();
    for (init_function* function = __init_array_start; function < __init_array_end; function++)
        (*function)(count, arguments, environment);
}

int __wrap___libc_start_main(main_function, int, char**, init_function, end_function, end_function, void*);
int __wrap___libc_start_main(main_function body, int count, char** arguments, init_function init, end_function end,
                             end_function loader_end, void* stack) {
    return old_start(body, count, arguments, init ? init : initialize, end, loader_end, stack);
}
