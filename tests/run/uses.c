/* Uses the process's own allocator, and comes to an end as it is told to: exit, _exit, kill, signal, exec, fork. */
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

/* Longer than between two writings of the figures. */
static void wait_a_little(void)
{
    struct timespec const time = {1, 0};
    nanosleep(&time, NULL);
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
        /* As servers do that fork first: the child is the one that uses memory. */
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
        wait_a_little();
        _exit(4);
    }
    if (strcmp(how, "kill") == 0)
    {
        wait_a_little();
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
        /* A child that goes on by itself gets no memory, and tells nothing; its exit is none of its parent's. */
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
