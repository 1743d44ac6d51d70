/* What memory calls wait for, how much of everything there is, and whether the driver's figures follow. */
#define _GNU_SOURCE
#include "probe.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

static const CUallocationProp PINNED = {.type = 1, .location = {1, 0}};
static const CUaccess BOTH = {{1, 0}, 3};

static void granularities(long unused) {
    (void)unused;
    setup();
    size_t least = 0, best = 0;
    MUST(cuMemGetAllocationGranularity, &least, &PINNED, 0);
    MUST(cuMemGetAllocationGranularity, &best, &PINNED, 1);
    char answer[32];
    snprintf(answer, sizeof answer, "%zu KiB", least >> 10);
    row(NULL, answer, "minimum %zu bytes, recommended %zu", least, best);
}

/* ---- calls beside work on another stream, which ends by itself ---- */

enum call { CREATE, MAP, ACCESS, UNMAP, RELEASE, RESERVE, ADDRESS_FREE, ALLOC, FREE, HOST_ALLOC, CALLS };

/* One call's time in microseconds. What it needs is made before, and what it made is removed after. */
static double one_call(int call, CUresult *code) {
    const size_t unit = granularity();
    CUdeviceptr range = new_range(unit), plain = 0, made = 0;
    CUhandle handle = new_handle(unit), created = 0;
    void *host = NULL;
    if (call == ACCESS || call == UNMAP) MUST(cuMemMap, range, unit, 0, handle, 0);
    if (call == UNMAP) give_access(range, unit);
    if (call == FREE) MUST(cuMemAlloc_v2, &plain, unit);
    if (call == HOST_ALLOC) NEED(cuMemHostAlloc);
    double start = now();
    switch (call) {
    case CREATE: *code = p_cuMemCreate(&created, unit, &PINNED, 0); break;
    case MAP: *code = p_cuMemMap(range, unit, 0, handle, 0); break;
    case ACCESS: *code = p_cuMemSetAccess(range, unit, &BOTH, 1); break;
    case UNMAP: *code = p_cuMemUnmap(range, unit); break;
    case RELEASE: *code = p_cuMemRelease(handle); break;
    case RESERVE: *code = p_cuMemAddressReserve(&made, unit, 0, 0, 0); break;
    case ADDRESS_FREE: *code = p_cuMemAddressFree(range, unit); break;
    case ALLOC: *code = p_cuMemAlloc_v2(&made, unit); break;
    case FREE: *code = p_cuMemFree_v2(plain); break;
    case HOST_ALLOC: *code = p_cuMemHostAlloc(&host, unit, 0); break;
    }
    /* What was made is left to the end of this process: giving it back may wait. */
    return (now() - start) * 1e6;
}

static void beside_work(long call) {
    enum { COUNT = 5, MOST_MS = 400 };
    setup();
    const char *why;
    int with_kernel = kernels_run(&why);
    CUresult code = 0, late = 0;
    double idle[COUNT];
    for (int i = -1; i < COUNT; i++) idle[i < 0 ? 0 : i] = one_call((int)call, &code);
    CUstream stream = new_stream();
    struct words words = {NULL, 0};
    struct gate gate;
    synchronize();
    /* Every call before the measured one is made while nothing runs, as it may wait too. So each try has work of its own. */
    double start = now();
    if (with_kernel) {
        words = new_words(2);
        hold_stream(words, stream, MOST_MS);
        while (!words.host[0] && now() < start + 1) {}
    } else {
        close_gate(&gate, stream);
        open_gate_after(&gate, MOST_MS);
    }
    double busy = one_call((int)call, &late);
    double all = (now() - start) * 1e3;
    if (with_kernel) words.host[1] = 1;
    else open_gate(&gate);
    CUresult end = p_cuStreamSynchronize(stream);
    char answer[64];
    const char *waits = busy * 1e-3 > 0.5 * MOST_MS ? "waits" : all > 0.5 * MOST_MS ? "what it needs waits" : "no wait";
    snprintf(answer, sizeof answer, "%s%s", late ? "refused, " : "", waits);
    row(NULL, answer, "%.1f us idle, %.1f us beside %s of %d ms; %s, the stream then %s", median(idle, COUNT), busy,
        with_kernel ? "a kernel" : "a host function", MOST_MS, name_of(late), name_of(end));
}

/* The kernel waits, and then writes to memory that was unmapped meanwhile. */
static void unmapped_under_kernel(long unused) {
    (void)unused;
    setup();
    kernels_must_run();
    const size_t unit = granularity();
    CUdeviceptr at = new_mapping(unit);
    CUstream stream = new_stream();
    struct words words = new_words(2);
    CUfunction write = kernel("write_words");
    unsigned value = 1, count = (unsigned)(unit / 4);
    void *arguments[] = {&at, &value, &count};
    synchronize();
    hold_stream(words, stream, 300);
    launch(write, 8, 256, stream, arguments);
    double start = now();
    CUresult code = p_cuMemUnmap(at, unit);
    double milliseconds = (now() - start) * 1e3;
    words.host[1] = 1;
    CUresult after = p_cuStreamSynchronize(stream);
    char answer[64];
    snprintf(answer, sizeof answer, "%s%s, work %s", code ? "refused, " : "", milliseconds > 150 ? "waits" : "no wait",
             after ? "faults" : "completes");
    row(NULL, answer, "cuMemUnmap %s after %.3f ms; the stream then %s", name_of(code), milliseconds, name_of(after));
}

/* ---- does the device's own work take longer while memory calls are made? ---- */

struct caller {
    volatile int stop;
    long calls;
    CUresult code;
};

static void *memory_calls(void *data) {
    struct caller *self = data;
    p_cuCtxSetCurrent(primary);
    const size_t unit = granularity();
    CUdeviceptr at = new_range(unit);
    while (!self->stop && !self->code) {
        CUhandle handle;
        self->code |= p_cuMemCreate(&handle, unit, &PINNED, 0);
        self->code |= p_cuMemMap(at, unit, 0, handle, 0);
        self->code |= p_cuMemSetAccess(at, unit, &BOTH, 1);
        self->code |= p_cuMemUnmap(at, unit);
        self->code |= p_cuMemRelease(handle);
        self->calls += 5;
    }
    return NULL;
}

static void work_beside_calls(long unused) {
    (void)unused;
    enum { LAUNCHES = 200 };
    setup();
    kernels_must_run();
    CUstream stream = new_stream();
    struct words words = new_words(1);
    unsigned turns = 1 << 16;
    void *arguments[] = {&words.device, &turns};
    CUfunction work = kernel("work");
    double times[2] = {0, 0};
    struct caller caller = {0, 0, 0};
    for (int which = -1; which < 2; which++) {
        pthread_t thread;
        if (which == 1 && pthread_create(&thread, NULL, memory_calls, &caller)) cannot_ask("no thread");
        double start = now();
        for (int i = 0; i < LAUNCHES; i++) launch(work, 64, 128, stream, arguments);
        MUST(cuStreamSynchronize, stream);
        times[which < 0 ? 0 : which] = now() - start;
        if (which != 1) continue;
        caller.stop = 1;
        pthread_join(thread, NULL);
    }
    char answer[32];
    snprintf(answer, sizeof answer, "x%.2f", times[1] / times[0]);
    row(NULL, answer, "%d kernels: %.2f ms alone, %.2f ms beside %ld memory calls (%s)", LAUNCHES, times[0] * 1e3,
        times[1] * 1e3, caller.calls, name_of(caller.code));
}

/* ---- how much there is ---- */

/* Handles may be file descriptors of a simulated driver. */
static void many_descriptors(void) {
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit)) return;
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
}

static void handles(long unused) {
    (void)unused;
    enum { MOST = 16384 };
    setup();
    many_descriptors();
    const size_t unit = granularity();
    static CUhandle made[MOST];
    size_t free_bytes, total;
    MUST(cuMemGetInfo_v2, &free_bytes, &total);
    CUdeviceptr range = new_range((size_t)MOST * unit);
    int count = 0;
    CUresult code = 0, mapped = 0, accessed = 0;
    double start = now();
    for (; count < MOST && now() < start + 8; count++) {
        code = p_cuMemCreate(&made[count], unit, &PINNED, 0);
        if (!code) mapped = p_cuMemMap(range + (size_t)count * unit, unit, 0, made[count], 0);
        if (code || mapped) break;
    }
    if (count) accessed = p_cuMemSetAccess(range, (size_t)count * unit, &BOTH, 1);
    double seconds = now() - start;
    char answer[32];
    snprintf(answer, sizeof answer, "%d%s", count, count == MOST ? " or more" : "");
    row(NULL, answer, "of 2 MiB, mapped, in %.2f s of at most 8 s, with %zu MiB free: cuMemCreate %s, cuMemMap %s, one cuMemSetAccess %s",
        seconds, free_bytes >> 20, name_of(code), name_of(mapped), name_of(accessed));
}

static void reservations(long unused) {
    (void)unused;
    enum { MOST = 4096 };
    setup();
    NEED(cuDeviceTotalMem_v2);
    const size_t unit = granularity();
    size_t total = 0;
    MUST(cuDeviceTotalMem_v2, &total, 0);
    const size_t bytes = (total * 8 + unit - 1) / unit * unit;
    CUdeviceptr at = 0;
    CUresult whole = p_cuMemAddressReserve(&at, bytes, 0, 0, 0), code = 0;
    int count = 0;
    const size_t one = (total + unit - 1) / unit * unit;
    double end = now() + 5;
    for (; count < MOST && now() < end; count++) {
        code = p_cuMemAddressReserve(&at, one, 0, 0, 0);
        if (code) break;
    }
    char answer[32];
    snprintf(answer, sizeof answer, "%s", whole ? "refused" : "allowed");
    row(NULL, answer, "%zu GiB: %s; then %d of the device's size, the last %s", bytes >> 30, name_of(whole), count,
        name_of(code));
}

/* 0: cuMemCreate and cuMemRelease; 1: cuMemAlloc and cuMemFree */
static void figures_follow(long plain) {
    setup();
    const size_t bytes = (size_t)64 << 20;
    size_t before, with, after, total;
    CUhandle handle;
    CUdeviceptr at;
    synchronize();
    MUST(cuMemGetInfo_v2, &before, &total);
    if (plain) MUST(cuMemAlloc_v2, &at, bytes);
    else handle = new_handle(bytes);
    MUST(cuMemGetInfo_v2, &with, &total);
    if (plain) MUST(cuMemFree_v2, at);
    else MUST(cuMemRelease, handle);
    MUST(cuMemGetInfo_v2, &after, &total);
    long taken = ((long)before - (long)with) >> 20, left = ((long)before - (long)after) >> 20;
    row(NULL, taken == 64 && left == 0 ? "yes" : "no", "64 MiB: %ld MiB less free, and %ld MiB less afterwards", taken, left);
}

static void cost_of_figures(long unused) {
    (void)unused;
    enum { COUNT = 1000 };
    setup();
    size_t free_bytes, total;
    double start = now();
    CUresult code = 0;
    for (int i = 0; i < COUNT; i++) code |= p_cuMemGetInfo_v2(&free_bytes, &total);
    char answer[32];
    snprintf(answer, sizeof answer, "%.1f us", (now() - start) / COUNT * 1e6);
    row(NULL, answer, "mean of %d calls, %s", COUNT, name_of(code));
}

/* ---- queries about captures, and context events with many streams ---- */

static void capture_info(long capturing) {
    enum { COUNT = 20000 };
    setup();
    NEED(cuStreamGetCaptureInfo_v2);
    CUstream stream = new_stream();
    if (capturing) MUST(cuStreamBeginCapture_v2, stream, MODE_RELAXED);
    int status = 0;
    unsigned long long id = 0;
    CUgraph graph = NULL;
    const void *nodes = NULL, *edges = NULL;
    size_t count = 0;
    CUresult code = 0;
    const char *name = p_cuStreamGetCaptureInfo_v3 ? "cuStreamGetCaptureInfo_v3" : "cuStreamGetCaptureInfo_v2";
    double start = now();
    for (int i = 0; i < COUNT; i++)
        code |= p_cuStreamGetCaptureInfo_v3
                    ? p_cuStreamGetCaptureInfo_v3(stream, &status, &id, &graph, &nodes, &edges, &count)
                    : p_cuStreamGetCaptureInfo_v2(stream, &status, &id, &graph, NULL, NULL);
    char answer[32];
    snprintf(answer, sizeof answer, "%.1f ns", (now() - start) / COUNT * 1e9);
    CUresult ended = capturing ? p_cuStreamEndCapture(stream, &graph) : 0;
    row(NULL, answer, "mean of %d calls of %s, %s, status %d; cuStreamEndCapture %s", COUNT, name, name_of(code), status,
        name_of(ended));
}

static void context_event_with_streams(long busy) {
    enum { STREAMS = 64, COUNT = 200 };
    setup();
    NEED(cuCtxRecordEvent);
    CUdeviceptr at = new_mapping(granularity());
    CUstream streams[STREAMS];
    for (int i = 0; i < STREAMS; i++) streams[i] = new_stream();
    CUevent event = new_event();
    CUresult code = 0;
    double spent = 0;
    for (int round = 0; round < COUNT; round++) {
        if (busy)
            for (int i = 0; i < STREAMS; i++) MUST(cuMemsetD8Async, at, 1, granularity(), streams[i]);
        double start = now();
        code |= p_cuCtxRecordEvent(primary, event);
        spent += now() - start;
    }
    synchronize();
    char answer[32];
    snprintf(answer, sizeof answer, "%.1f us", spent / COUNT * 1e6);
    row(NULL, answer, "mean of %d, %s", COUNT, name_of(code));
}

const struct question device_questions[] = {
    {"granularity of handles", granularities, 0},
    {"cuMemCreate beside work on another stream", beside_work, CREATE},
    {"cuMemMap beside work on another stream", beside_work, MAP},
    {"cuMemSetAccess beside work on another stream", beside_work, ACCESS},
    {"cuMemUnmap beside work on another stream", beside_work, UNMAP},
    {"cuMemRelease beside work on another stream", beside_work, RELEASE},
    {"cuMemAddressReserve beside work on another stream", beside_work, RESERVE},
    {"cuMemAddressFree beside work on another stream", beside_work, ADDRESS_FREE},
    {"cuMemAlloc beside work on another stream", beside_work, ALLOC},
    {"cuMemFree beside work on another stream", beside_work, FREE},
    {"cuMemHostAlloc beside work on another stream", beside_work, HOST_ALLOC},
    {"cuMemUnmap of memory that a kernel will write", unmapped_under_kernel, 0},
    {"time of kernels beside memory calls of another thread", work_beside_calls, 0},
    {"handles of 2 MiB at once", handles, 0},
    {"a reservation of eight times the device's memory", reservations, 0},
    {"cuMemGetInfo follows cuMemCreate and cuMemRelease", figures_follow, 0},
    {"cuMemGetInfo follows cuMemAlloc and cuMemFree", figures_follow, 1},
    {"cost of cuMemGetInfo", cost_of_figures, 0},
    {"cost of cuStreamGetCaptureInfo, no capture", capture_info, 0},
    {"cost of cuStreamGetCaptureInfo in a capture", capture_info, 1},
    {"cost of cuCtxRecordEvent with 64 idle streams", context_event_with_streams, 0},
    {"cost of cuCtxRecordEvent with 64 busy streams", context_event_with_streams, 1},
    {NULL, NULL, 0},
};
