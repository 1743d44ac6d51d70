/* A plugin that interposes a function, as tools do, and looks up the next definition. */
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

pid_t getpid(void);

static char text[256];

__attribute__((visibility("default"))) pid_t getpid(void)
{
    return 1;
}

__attribute__((visibility("default"))) char const* ask(void);

char const* ask(void)
{
    void* const next = dlsym(RTLD_NEXT, "getpid");
    void* const first = dlsym(RTLD_DEFAULT, "getpid");
    void* const none = dlsym(RTLD_NEXT, "ask");
    Dl_info info = {NULL, NULL, NULL, NULL};
    if (next != NULL)
    {
        dladdr(next, &info);
    }
    snprintf(text, sizeof text, "next %s, first is the one called: %s, %s behind", info.dli_fname != NULL ? strrchr(info.dli_fname, '/') : "none",
             first == (void*) getpid ? "yes" : "no", none == NULL ? "nothing" : "something");
    return text;
}
