/* A program that opens a module and calls its function. */
#include <dlfcn.h>
#include <stdio.h>

int main(int count, char** arguments)
{
    void* const module = dlopen(arguments[count - 1], RTLD_NOW);
    int (*ask)(void) = NULL;
    if (module != NULL)
    {
        *(void**) &ask = dlsym(module, "ask");
    }
    if (ask == NULL)
    {
        fprintf(stderr, "%s\n", dlerror());
        return 1;
    }
    return ask();
}
