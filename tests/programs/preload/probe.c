/* Prints what else is in the process: threads, descriptors, mapped files, children; and the dynamic linker's
   results: dlsym with every special handle, dlerror, and interposed names. */
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static int entries(char const* path)
{
    DIR* const folder = opendir(path);
    int count = 0;
    while (folder != NULL && readdir(folder) != NULL)
    {
        ++count;
    }
    closedir(folder);
    return count;
}

/* Mapped files, each once, without the library under test and the libraries that it needs. */
static void mapped(void)
{
    FILE* const maps = fopen("/proc/self/maps", "r");
    char line[4096];
    char before[4096] = "";
    while (fgets(line, sizeof line, maps) != NULL)
    {
        char* const path = strchr(line, '/');
        if (path == NULL || strcmp(path, before) == 0)
        {
            continue;
        }
        strcpy(before, path);
        char const* const name = strrchr(path, '/') + 1;
        if (strncmp(name, "libtrtalloc.so", 14) != 0 && strncmp(name, "libgcc_s.so", 11) != 0
            && strncmp(name, "libm.so", 7) != 0)
        {
            printf("mapped %s", name);
        }
    }
    fclose(maps);
}

static char const* of(void* address)
{
    Dl_info info;
    if (address == NULL)
    {
        return "nothing";
    }
    return dladdr(address, &info) == 0 || info.dli_fname == NULL ? "no file" : strrchr(info.dli_fname, '/') + 1;
}

static void look_up(char const* name)
{
    void* const libc = dlopen("libc.so.6", RTLD_NOW);
    dlerror();
    char const* const handles[] = {"default", "next", "libc", "self"};
    void* const where[] = {RTLD_DEFAULT, RTLD_NEXT, libc, dlopen(NULL, RTLD_NOW)};
    for (int i = 0; i < 4; ++i)
    {
        errno = 77;
        void* const found = dlsym(where[i], name);
        char const* const error = dlerror();
        printf("%s %s: of %s, %s, errno %d\n", handles[i], name, of(found), error != NULL ? error : "no error", errno);
        if (dlerror() != NULL)
        {
            printf("registered twice\n");
        }
    }
    dlclose(libc);
}

static void* in_thread(void* given)
{
    look_up("puts");
    look_up("no_such_function");
    return given;
}

static void at_end(void)
{
    look_up("getpid");
    printf("end\n");
    fflush(stdout);
}

int main(int count, char** arguments)
{
    atexit(at_end);
    printf("%d threads, %d descriptors\n", entries("/proc/self/task"), entries("/proc/self/fd"));
    mapped();
    for (char const* const* name = (char const* const[]){"malloc", "dlopen", "main", "no_such_function", "", NULL}; *name != NULL;
         ++name)
    {
        look_up(*name);
    }
    if (dlopen("/nowhere/libnone.so", RTLD_NOW) == NULL)
    {
        printf("%s\n", dlerror());
    }
    /* A plugin that looks up the next definition. */
    for (int i = 1; i < count; ++i)
    {
        void* const plugin = dlopen(arguments[i], RTLD_NOW | RTLD_LOCAL);
        char const* (*const ask)(void) = (char const* (*)(void)) dlsym(plugin, "ask");
        printf("%s\n", ask != NULL ? ask() : dlerror());
    }
    pthread_t thread;
    pthread_create(&thread, NULL, in_thread, NULL);
    pthread_join(thread, NULL);
    fflush(stdout);
    for (int i = 0; i < 3; ++i)
    {
        pid_t const child = i == 0 ? fork() : vfork();
        if (child == 0)
        {
            if (i == 0)
            {
                look_up("getppid");
                exit(4);
            }
            execlp("sh", "sh", "-c", "echo child; exit 5", (char*) NULL);
            _exit(6);
        }
        int status = 0;
        waitpid(child, &status, 0);
        printf("child %d\n", WEXITSTATUS(status));
        fflush(stdout);
    }
    /* A joined thread is visible until the kernel has removed it. */
    for (int i = 0; i < 1000 && entries("/proc/self/task") > 3; ++i)
    {
        usleep(10000);
    }
    printf("%d threads, %d descriptors\n", entries("/proc/self/task"), entries("/proc/self/fd"));
    return 3;
}
