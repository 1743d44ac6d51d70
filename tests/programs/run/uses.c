/* Uses the process's own allocator and ends as its argument says: exit, _exit, kill, signal, exec, fork. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <trtalloc/trtalloc.h>

static void use(uint64_t bytes)
{
    void* block = trtalloc_allocate(trtalloc_default(), bytes, 0, 0);
    if (block == NULL)
    {
        fprintf(stderr, "%s\n", trtalloc_last_error());
        exit(9);
    }
    trtalloc_deallocate(trtalloc_default(), block);
}

/* Waits until the figures are where `run` finds them, in this order: peak bytes in use, bytes reserved, their peak,
   and requests. */
static void wait_for_figures(uint64_t bytes)
{
    uint64_t const expected[] = {bytes, bytes, bytes, 1};
    uint64_t file[4096];
    for (;;)
    {
        FILE* const figures = fopen(getenv("__TRTALLOC_RUN_STATISTICS"), "rb");
        size_t const count = figures != NULL ? fread(file, sizeof *file, 4096, figures) : 0;
        if (count == 0)
        {
            exit(8);
        }
        fclose(figures);
        for (size_t i = 0; i + 4 <= count; ++i)
        {
            if (memcmp(file + i, expected, sizeof expected) == 0)
            {
                return;
            }
        }
        struct timespec const time = {0, 10000000};
        nanosleep(&time, NULL);
    }
}

static void end_by_exit(int signal)
{
    (void)signal;
    exit(6);
}

int main(int count, char** arguments)
{
    char const* const how = count > 1 ? arguments[1] : "exit";
    if (strcmp(how, "nothing") == 0)
    {
        return 0;
    }
    if (strcmp(how, "worker") == 0)
    {
        /* As servers that fork first: the child uses the memory. */
        pid_t const child = fork();
        if (child == 0)
        {
            use(4u << 20);
            exit(0);
        }
        int status = 1;
        waitpid(child, &status, 0);
        return status;
    }
    use(8u << 20);
    if (strcmp(how, "exit") == 0)
    {
        return 5;
    }
    if (strcmp(how, "_exit") == 0)
    {
        wait_for_figures(8u << 20);
        _exit(4);
    }
    if (strcmp(how, "kill") == 0)
    {
        wait_for_figures(8u << 20);
        kill(getpid(), SIGKILL);
    }
    if (strcmp(how, "signal") == 0)
    {
        signal(SIGUSR1, end_by_exit);
        raise(SIGUSR1);
    }
    if (strcmp(how, "exec") == 0)
    {
        execl(arguments[0], arguments[0], "exit", (char*) NULL);
    }
    if (strcmp(how, "fork") == 0)
    {
        /* A child that goes on after the fork gets no memory and reports nothing. Its exit does not count as its
           parent's. */
        pid_t const child = fork();
        if (child == 0)
        {
            exit(trtalloc_allocate(trtalloc_default(), 512, 0, 0) == NULL ? 0 : 1);
        }
        int status = 1;
        waitpid(child, &status, 0);
        use(16u << 20);
        return status;
    }
    return 3;
}
