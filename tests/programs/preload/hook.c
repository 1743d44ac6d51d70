/* A program with its own dlsym, as profilers and overlays have, which counts the calls and forwards them. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int asked;

__attribute__((visibility("default"))) void* dlsym(void* library, char const* name)
{
    static void* (*real)(void*, char const*);
    if (real == NULL)
    {
        *(void**) &real = dlvsym(RTLD_NEXT, "dlsym", VERSION);
    }
    ++asked;
    if (strcmp(name, "replaced") == 0)
    {
        return (void*) &asked;
    }
    return real(library, name);
}

int main(int count, char** arguments)
{
    void* const self = dlopen(NULL, RTLD_NOW);
    int (*print)(char const*);
    *(void**) &print = dlsym(self, "puts");
    print("through the hook");
    printf("%s\n", dlsym(self, "replaced") == &asked ? "replaced" : "not replaced");
    for (int i = 1; i < count; ++i)
    {
        void* const plugin = dlopen(arguments[i], RTLD_NOW);
        char const* (*ask)(void);
        *(void**) &ask = dlsym(plugin, "ask");
        printf("%s\n", ask());
    }
    printf("%d asked\n", asked);
    return 8;
}
