/* What the calls cost. */
#include "probe.h"

#include <stdio.h>
#include <stdlib.h>

enum { LOOPS = 20000, ROUNDS = 7 };

/* The median over rounds, in ns a call. */
#define NANOSECONDS(result, call) \
    do { \
        double rounds[ROUNDS]; \
        for (int round = 0; round < ROUNDS; round++) { \
            double start = now(); \
            for (int i = 0; i < LOOPS; i++) code |= (call); \
            rounds[round] = (now() - start) / LOOPS * 1e9; \
        } \
        (result) = median(rounds, ROUNDS); \
    } while (0)

#define REPORT(text, call) \
    do { \
        double cost; \
        CUresult code = 0; \
        char answer[32]; \
        NANOSECONDS(cost, call); \
        snprintf(answer, sizeof answer, "%.1f ns", cost); \
        row(text, answer, "median of %d x %d calls, code %u", ROUNDS, LOOPS, code); \
    } while (0)

static void stream_id(long special) {
    setup();
    NEED(cuStreamGetId);
    unsigned long long id;
    CUstream stream = special ? NULL : new_stream();
    REPORT(NULL, p_cuStreamGetId(stream, &id));
}

static void is_capturing(long special) {
    setup();
    NEED(cuStreamIsCapturing);
    int status;
    CUstream stream = special ? NULL : new_stream();
    REPORT(NULL, p_cuStreamIsCapturing(stream, &status));
}

static void get_current(long unused) {
    (void)unused;
    setup();
    NEED(cuCtxGetCurrent);
    CUcontext context;
    REPORT(NULL, p_cuCtxGetCurrent(&context));
}

static void get_device(long unused) {
    (void)unused;
    setup();
    NEED(cuCtxGetDevice);
    CUdevice device;
    REPORT(NULL, p_cuCtxGetDevice(&device));
}

static void stream_context(long unused) {
    (void)unused;
    setup();
    NEED(cuStreamGetCtx);
    CUcontext context;
    CUstream stream = new_stream();
    REPORT(NULL, p_cuStreamGetCtx(stream, &context));
}

static void event_query(long unused) {
    (void)unused;
    setup();
    NEED(cuEventQuery);
    CUevent event = new_event();
    REPORT(NULL, p_cuEventQuery(event));
}

static void event_record(long unused) {
    (void)unused;
    setup();
    NEED(cuEventRecord);
    CUevent event = new_event();
    CUstream stream = new_stream();
    REPORT(NULL, p_cuEventRecord(event, stream));
}

static void context_event(long unused) {
    (void)unused;
    setup();
    NEED(cuCtxRecordEvent);
    CUevent event = new_event();
    REPORT(NULL, p_cuCtxRecordEvent(primary, event));
}

/* ---- memory, in microseconds ---- */

static void time_row(const char *format, const char *size, double *values, int count) {
    char question[128], answer[32];
    snprintf(question, sizeof question, format, size);
    double middle = median(values, count);
    snprintf(answer, sizeof answer, "%.1f us", middle);
    row(question, answer, "median of %d, least %.1f, most %.1f", count, values[0], values[count - 1]);
}

static const char *size_name(long mebibytes) {
    static char text[32];
    if (mebibytes >= 1024) snprintf(text, sizeof text, "%ld GiB", mebibytes / 1024);
    else snprintf(text, sizeof text, "%ld MiB", mebibytes);
    return text;
}

/* Runs one step and keeps its time in microseconds. */
#define TIMED(into, name, ...) \
    do { \
        double start_ = now(); \
        MUST(name, __VA_ARGS__); \
        (into) = (now() - start_) * 1e6; \
    } while (0)

static void virtual_memory(long mebibytes) {
    enum { MOST = 15 };
    static double create[MOST], map[MOST], access[MOST], unmap[MOST], release[MOST];
    setup();
    NEED(cuMemCreate);
    const size_t bytes = (size_t)mebibytes << 20;
    const int count = mebibytes >= 1024 ? 5 : MOST;
    const CUallocationProp pinned = {.type = 1, .location = {1, 0}};
    const CUaccess both = {{1, 0}, 3};
    CUdeviceptr at = new_range(bytes);
    for (int i = -1; i < count; i++) { /* -1: a first time that is not counted */
        int slot = i < 0 ? 0 : i;
        CUhandle handle;
        TIMED(create[slot], cuMemCreate, &handle, bytes, &pinned, 0);
        TIMED(map[slot], cuMemMap, at, bytes, 0, handle, 0);
        TIMED(access[slot], cuMemSetAccess, at, bytes, &both, 1);
        TIMED(unmap[slot], cuMemUnmap, at, bytes);
        TIMED(release[slot], cuMemRelease, handle);
    }
    const char *size = size_name(mebibytes);
    time_row("cost of cuMemCreate, %s", size, create, count);
    time_row("cost of cuMemMap, %s", size, map, count);
    time_row("cost of cuMemSetAccess, %s", size, access, count);
    time_row("cost of cuMemUnmap, %s", size, unmap, count);
    time_row("cost of cuMemRelease, %s", size, release, count);
}

static void plain_memory(long mebibytes) {
    enum { MOST = 15 };
    static double allocate[MOST], release[MOST];
    setup();
    const size_t bytes = (size_t)mebibytes << 20;
    const int count = mebibytes >= 1024 ? 5 : MOST;
    for (int i = -1; i < count; i++) {
        int slot = i < 0 ? 0 : i;
        CUdeviceptr at;
        TIMED(allocate[slot], cuMemAlloc_v2, &at, bytes);
        TIMED(release[slot], cuMemFree_v2, at);
    }
    const char *size = size_name(mebibytes);
    time_row("cost of cuMemAlloc, %s", size, allocate, count);
    time_row("cost of cuMemFree, %s", size, release, count);
}

/* Twice: synchronized after each pair, which gives the pool's memory back, and not, which reuses it. */
static void pool_memory(long mebibytes) {
    enum { MOST = 15 };
    static double cold[MOST], cold_free[MOST], warm[MOST], warm_free[MOST];
    setup();
    NEED(cuMemAllocAsync);
    NEED(cuMemFreeAsync);
    const size_t bytes = (size_t)mebibytes << 20;
    const int count = mebibytes >= 1024 ? 5 : MOST;
    CUstream stream = new_stream();
    CUdeviceptr at;
    for (int i = -1; i < count; i++) {
        int slot = i < 0 ? 0 : i;
        TIMED(cold[slot], cuMemAllocAsync, &at, bytes, stream);
        TIMED(cold_free[slot], cuMemFreeAsync, at, stream);
        MUST(cuStreamSynchronize, stream);
    }
    for (int i = -1; i < count; i++) {
        int slot = i < 0 ? 0 : i;
        TIMED(warm[slot], cuMemAllocAsync, &at, bytes, stream);
        TIMED(warm_free[slot], cuMemFreeAsync, at, stream);
    }
    MUST(cuStreamSynchronize, stream);
    const char *size = size_name(mebibytes);
    time_row("cost of cuMemAllocAsync, %s, synchronized each time", size, cold, count);
    time_row("cost of cuMemFreeAsync, %s, synchronized each time", size, cold_free, count);
    time_row("cost of cuMemAllocAsync, %s, reusing", size, warm, count);
    time_row("cost of cuMemFreeAsync, %s, reusing", size, warm_free, count);
}

/* 1 GiB in handles of the granularity: one call each to create and map, one access call over all. */
static void many_handles(long unused) {
    (void)unused;
    setup();
    NEED(cuMemCreate);
    const size_t one = granularity(), all = (size_t)1 << 30;
    const int count = (int)(all / one);
    CUhandle *handles = malloc(sizeof *handles * (size_t)count);
    if (!handles) abort();
    CUdeviceptr at = new_range(all);
    double start = now();
    for (int i = 0; i < count; i++) handles[i] = new_handle(one);
    double created = now();
    for (int i = 0; i < count; i++) MUST(cuMemMap, at + (size_t)i * one, one, 0, handles[i], 0);
    double mapped = now();
    give_access(at, all);
    double accessed = now();
    MUST(cuMemUnmap, at, all);
    double unmapped = now();
    for (int i = 0; i < count; i++) MUST(cuMemRelease, handles[i]);
    double released = now();
    char answer[32];
    snprintf(answer, sizeof answer, "%.1f us", (accessed - start) * 1e6);
    row(NULL, answer,
        "%d handles: create %.1f us, map %.1f us, one access call %.1f us, one unmap %.1f us, release %.1f us", count,
        (created - start) * 1e6, (mapped - created) * 1e6, (accessed - mapped) * 1e6, (unmapped - accessed) * 1e6,
        (released - unmapped) * 1e6);
}

const struct question cost_questions[] = {
    {"cost of cuStreamGetId", stream_id, 0},
    {"cost of cuStreamGetId, default stream", stream_id, 1},
    {"cost of cuStreamIsCapturing", is_capturing, 0},
    {"cost of cuStreamIsCapturing, default stream", is_capturing, 1},
    {"cost of cuCtxGetCurrent", get_current, 0},
    {"cost of cuCtxGetDevice", get_device, 0},
    {"cost of cuStreamGetCtx", stream_context, 0},
    {"cost of cuEventQuery, completed", event_query, 0},
    {"cost of cuEventRecord", event_record, 0},
    {"cost of cuCtxRecordEvent", context_event, 0},
    {"cost of virtual memory calls, 2 MiB", virtual_memory, 2},
    {"cost of virtual memory calls, 32 MiB", virtual_memory, 32},
    {"cost of virtual memory calls, 1 GiB", virtual_memory, 1024},
    {"cost of 1 GiB in small handles", many_handles, 0},
    {"cost of cuMemAlloc and cuMemFree, 2 MiB", plain_memory, 2},
    {"cost of cuMemAlloc and cuMemFree, 32 MiB", plain_memory, 32},
    {"cost of cuMemAlloc and cuMemFree, 1 GiB", plain_memory, 1024},
    {"cost of cuMemAllocAsync and cuMemFreeAsync, 2 MiB", pool_memory, 2},
    {"cost of cuMemAllocAsync and cuMemFreeAsync, 32 MiB", pool_memory, 32},
    {"cost of cuMemAllocAsync and cuMemFreeAsync, 1 GiB", pool_memory, 1024},
    {NULL, NULL, 0},
};
