/* probe: what does this driver really do? Answers questions about libcuda.so.1 that its documentation leaves open, as a
 * table on stdout. Needs a driver and nothing else:
 *
 *     cd tests/gpu/probe && cc -std=c99 -O2 -I../../../include -o probe *.c -ldl -pthread
 *     ./probe [TEXT]      only the questions that contain TEXT
 *
 * Every question is asked in a child process, forked before this one touches the driver: a crash or a hang is an
 * answer.
 * Most work is made of memsets, copies and host functions. Kernels are PTX that the driver compiles (kernels.c), so no
 * compiler for one is needed. Questions about the library's own pool (pool.c) load libtrtalloc.so. */
#define _GNU_SOURCE
#include "probe.h"

#include <dlfcn.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define DEFINE(name, parameters) CUresult(*p_##name) parameters;
FUNCTIONS(DEFINE)
#undef DEFINE

enum { TIMEOUT_SECONDS = 20, QUESTION_WIDTH = 84, ANSWER_WIDTH = 34 };

CUcontext primary;
static const char *asking = "";
static int answers = -1;
static int refusal = 0; /* the exit status of a child that could not ask */

/* ---- rows: a child writes "question \t answer \t evidence \n" into a pipe ---- */

void row(const char *question, const char *answer, const char *evidence, ...) {
    char text[1024], line[2048];
    va_list list;
    va_start(list, evidence);
    vsnprintf(text, sizeof text, evidence, list);
    va_end(list);
    int length = snprintf(line, sizeof line, "%s\t%s\t%s\n", question ? question : asking, answer, text);
    if (length > (int)sizeof line - 1) length = (int)sizeof line - 1;
    if (write(answers, line, (size_t)length) != length) _exit(3);
}

void absent(const char *function) {
    row(NULL, "absent", "this driver has no %s", function);
    _exit(refusal);
}

void not_asked(const char *call, CUresult code) {
    row(NULL, "not asked", "%s gave %u (%s) before the question could be put", call, code, name_of(code));
    _exit(refusal);
}

void cannot_ask(const char *why, ...) {
    char text[512];
    va_list list;
    va_start(list, why);
    vsnprintf(text, sizeof text, why, list);
    va_end(list);
    row(NULL, "not asked", "%s", text);
    _exit(refusal);
}

const char *name_of(CUresult code) {
    const char *name = NULL;
    if (!p_cuGetErrorName || p_cuGetErrorName(code, &name) || !name) return "no name";
    return name;
}

/* ---- the driver ---- */

static void *load(void) {
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!library) return NULL;
#define LOOK_UP(name, parameters) *(void **)&p_##name = dlsym(library, #name);
    FUNCTIONS(LOOK_UP)
#undef LOOK_UP
    return library;
}

void setup(void) {
    MUST(cuInit, 0);
    MUST(cuDevicePrimaryCtxRetain, &primary, 0);
    MUST(cuCtxSetCurrent, primary);
}

void synchronize(void) {
    NEED(cuCtxSynchronize);
    CUresult code = p_cuCtxSynchronize();
    if (code) not_asked("cuCtxSynchronize", code);
}

CUstream new_stream(void) {
    CUstream stream;
    MUST(cuStreamCreate, &stream, NON_BLOCKING);
    return stream;
}

CUevent new_event(void) {
    CUevent event;
    MUST(cuEventCreate, &event, DISABLE_TIMING);
    return event;
}

static const CUallocationProp PINNED = {.type = 1, .location = {1, 0}};

size_t granularity(void) {
    size_t bytes = 0;
    MUST(cuMemGetAllocationGranularity, &bytes, &PINNED, 0);
    return bytes;
}

CUhandle new_handle(size_t bytes) {
    CUhandle handle;
    MUST(cuMemCreate, &handle, bytes, &PINNED, 0);
    return handle;
}

CUdeviceptr new_range(size_t bytes) {
    CUdeviceptr at;
    MUST(cuMemAddressReserve, &at, bytes, 0, 0, 0);
    return at;
}

void give_access(CUdeviceptr at, size_t bytes) {
    const CUaccess access = {{1, 0}, 3};
    MUST(cuMemSetAccess, at, bytes, &access, 1);
}

CUdeviceptr new_mapping(size_t bytes) {
    CUdeviceptr at = new_range(bytes);
    CUhandle handle = new_handle(bytes);
    MUST(cuMemMap, at, bytes, 0, handle, 0);
    MUST(cuMemRelease, handle);
    give_access(at, bytes);
    return at;
}

/* ---- gates and clocks ---- */

static void stand_at_gate(void *data) {
    struct gate *gate = data;
    gate->entered = 1;
    while (!__sync_fetch_and_add(&gate->open, 0)) usleep(20);
}

void close_gate(struct gate *gate, CUstream stream) {
    gate->open = gate->entered = 0;
    MUST(cuLaunchHostFunc, stream, stand_at_gate, gate);
}

void gates_must_hold(void) {
    CUstream stream = new_stream();
    CUevent event = new_event();
    struct gate gate;
    close_gate(&gate, stream);
    MUST(cuEventRecord, event, stream);
    CUresult code = p_cuEventQuery(event);
    open_gate(&gate);
    if (code != NOT_READY) cannot_ask("an event behind a host function that still runs gives %s here", name_of(code));
    MUST(cuStreamSynchronize, stream);
}

void open_gate(struct gate *gate) { __sync_lock_test_and_set(&gate->open, 1); }

struct later {
    struct gate *gate;
    int milliseconds;
};

static void *opener(void *data) {
    struct later later = *(struct later *)data;
    free(data);
    pause_ms(later.milliseconds);
    open_gate(later.gate);
    return NULL;
}

void open_gate_after(struct gate *gate, int milliseconds) {
    struct later *later = malloc(sizeof *later);
    pthread_t thread;
    if (!later) abort();
    later->gate = gate;
    later->milliseconds = milliseconds;
    if (pthread_create(&thread, NULL, opener, later)) abort();
    pthread_detach(thread);
}

double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

void pause_ms(int milliseconds) {
    struct timespec time = {milliseconds / 1000, milliseconds % 1000 * 1000000L};
    while (nanosleep(&time, &time) && errno == EINTR) {}
}

int wait_for(volatile int *flag, int milliseconds) {
    double end = now() + milliseconds * 1e-3;
    while (!__sync_fetch_and_add(flag, 0)) {
        if (now() > end) return 0;
        usleep(20);
    }
    return 1;
}

static int compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double median(double *values, int count) {
    qsort(values, (size_t)count, sizeof *values, compare);
    return count % 2 ? values[count / 2] : (values[count / 2 - 1] + values[count / 2]) / 2;
}

const char *mode_name(long mode) {
    static const char *const names[] = {"global", "thread-local", "relaxed"};
    return mode < 0 || mode > 2 ? "no" : names[mode];
}

/* ---- asking ---- */

static void print_line(char *line) {
    char *answer = strchr(line, '\t');
    char *evidence = answer ? strchr(answer + 1, '\t') : NULL;
    if (!evidence) return;
    *answer++ = *evidence++ = '\0';
    printf("%-*s | %-*s | %s\n", QUESTION_WIDTH, line, ANSWER_WIDTH, answer, evidence);
    fflush(stdout);
}

/* Prints a child's lines as they come. Returns how many; -1 after a time-out. */
static int read_rows(int from) {
    char buffer[8192];
    size_t used = 0;
    int rows = 0;
    double end = now() + TIMEOUT_SECONDS;
    for (;;) {
        int left = (int)((end - now()) * 1000);
        struct pollfd wait = {from, POLLIN, 0};
        int ready = left > 0 ? poll(&wait, 1, left) : 0;
        if (ready < 0 && errno == EINTR) continue;
        if (ready <= 0) return -1;
        ssize_t got = read(from, buffer + used, sizeof buffer - 1 - used);
        if (got <= 0) return rows;
        used += (size_t)got;
        buffer[used] = '\0';
        char *start = buffer, *end_of_line;
        while ((end_of_line = strchr(start, '\n'))) {
            *end_of_line = '\0';
            print_line(start);
            rows++;
            start = end_of_line + 1;
        }
        used -= (size_t)(start - buffer);
        memmove(buffer, start, used);
    }
}

static pid_t start(void (*ask)(long), long argument, int *from) {
    int ends[2];
    if (pipe(ends)) abort();
    fflush(stdout);
    pid_t child = fork();
    if (child < 0) abort();
    if (child == 0) {
        close(ends[0]);
        answers = ends[1];
        if (!load()) {
            row(NULL, "not asked", "%s", dlerror());
            _exit(1);
        }
        ask(argument);
        /* No exit handlers: the driver's may wait for work that never ends. */
        _exit(0);
    }
    close(ends[1]);
    *from = ends[0];
    return child;
}

/* Ends a child that hangs. One that the kernel cannot end, as its driver call does not return, is left behind. */
static void stop(pid_t child) {
    kill(child, SIGKILL);
    for (int tries = 0; tries < 100 && waitpid(child, NULL, WNOHANG) == 0; tries++) pause_ms(50);
}

static void ask(const struct question *question) {
    int from, status = 0;
    asking = question->text;
    pid_t child = start(question->ask, question->argument, &from);
    int rows = read_rows(from);
    close(from);
    char line[1024];
    if (rows < 0) {
        stop(child);
        snprintf(line, sizeof line, "%s\thangs\tno answer within %d s", question->text, TIMEOUT_SECONDS);
        print_line(line);
        return;
    }
    while (waitpid(child, &status, 0) < 0 && errno == EINTR) {}
    if (WIFSIGNALED(status)) {
        snprintf(line, sizeof line, "%s\tcrashes\tsignal %d (%s)", question->text, WTERMSIG(status),
                 strsignal(WTERMSIG(status)));
    } else if (rows == 0) {
        snprintf(line, sizeof line, "%s\tno answer\texit status %d", question->text, WEXITSTATUS(status));
    } else {
        return;
    }
    print_line(line);
}

/* Which driver this is. Without one nothing else is asked. */
static void describe(long unused) {
    (void)unused;
    refusal = 1;
    char name[256] = "";
    int version = 0, count = 0;
    MUST(cuInit, 0);
    MUST(cuDriverGetVersion, &version);
    MUST(cuDeviceGetCount, &count);
    MUST(cuDeviceGetName, name, (int)sizeof name - 1, 0);
    Dl_info where = {0};
    dladdr(*(void **)&p_cuInit, &where);
    row("driver", strcasestr(name, "simulat") ? "simulated" : "a GPU", "%s; CUDA %d.%d; %d device(s); %s", name,
        version / 1000, version % 1000 / 10, count, where.dli_fname ? where.dli_fname : "?");
}

int main(int count, char **arguments) {
    const char *filter = count > 1 ? arguments[1] : "";
    if (count > 2 && !strcmp(filter, "--ptx")) { /* the number of a module: its text, for an assembler */
        int number = atoi(arguments[2]);
        for (int i = 0; ptx_modules[i]; i++)
            if (i == number) return fputs(ptx_modules[i], stdout) < 0;
        return 1;
    }
    static const struct question *const sets[] = {cost_questions,     capture_questions, memory_questions,
                                                  lifetime_questions, alias_questions,   device_questions,
                                                  pool_questions,     green_questions};
    printf("%-*s | %-*s | %s\n", QUESTION_WIDTH, "question", ANSWER_WIDTH, "answer", "evidence");
    int from, status = 0;
    asking = "driver";
    pid_t child = start(describe, 0, &from);
    int rows = read_rows(from);
    close(from);
    if (rows < 0) stop(child);
    else while (waitpid(child, &status, 0) < 0 && errno == EINTR) {}
    if (rows != 1 || status != 0) {
        fprintf(stderr, "probe: no driver here answers\n");
        return 1;
    }
    for (size_t set = 0; set < sizeof sets / sizeof *sets; set++)
        for (const struct question *question = sets[set]; question->text; question++)
            if (strstr(question->text, filter)) ask(question);
    return 0;
}
