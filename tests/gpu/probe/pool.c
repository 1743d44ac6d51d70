/* The library's pool over this driver: captures beside an engine that loads, graphs, blocks that move, a server. The library
 * is TRTALLOC_LIBRARY, or libtrtalloc.so where the loader finds it. */
#define _GNU_SOURCE
#include "probe.h"

#include <trtalloc/trtalloc.h>

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define POOL_FUNCTIONS(X) \
    X(trtalloc_create) X(trtalloc_destroy) X(trtalloc_allocate) X(trtalloc_allocate_async) X(trtalloc_reallocate) \
    X(trtalloc_deallocate) X(trtalloc_deallocate_async) X(trtalloc_stats_get) X(trtalloc_last_error)
#define POINTER(name) static __typeof__(name) *p_##name;
POOL_FUNCTIONS(POINTER)
#undef POINTER

static const size_t MIB = (size_t)1 << 20;

static trtalloc_allocator *new_pool(const char *options) {
    const char *path = getenv("TRTALLOC_LIBRARY");
    void *library = dlopen(path ? path : "libtrtalloc.so", RTLD_NOW | RTLD_LOCAL);
    if (!library) cannot_ask("%s", dlerror());
#define LOOK_UP(name) \
    *(void **)&p_##name = dlsym(library, #name); \
    if (!p_##name) cannot_ask("this libtrtalloc.so has no " #name);
    POOL_FUNCTIONS(LOOK_UP)
#undef LOOK_UP
    trtalloc_allocator *pool = NULL;
    if (p_trtalloc_create(options, &pool)) cannot_ask("trtalloc_create: %s", p_trtalloc_last_error());
    return pool;
}

static trtalloc_stats figures(trtalloc_allocator *pool) {
    trtalloc_stats stats;
    memset(&stats, 0, sizeof stats);
    if (p_trtalloc_stats_get(pool, 0, &stats, sizeof stats)) cannot_ask("trtalloc_stats_get: %s", p_trtalloc_last_error());
    return stats;
}

/* ---- another thread loads an engine while this one captures ---- */

struct loader {
    trtalloc_allocator *pool; /* NULL: cuMemAlloc and cuMemFree */
    volatile int go, done;
    int failures;
};

/* Weights that stay, weights that go again, and many small blocks, all without a stream. */
static void *load_engines(void *data) {
    enum { ENGINES = 4, BLOCKS = 40 };
    struct loader *self = data;
    p_cuCtxSetCurrent(primary);
    wait_for(&self->go, 10000);
    for (int engine = 0; engine < ENGINES; engine++) {
        CUdeviceptr plain[BLOCKS];
        void *blocks[BLOCKS];
        for (int i = 0; i < BLOCKS; i++) {
            size_t bytes = i < 4 ? 24 * MIB : 300000;
            if (self->pool) self->failures += !(blocks[i] = p_trtalloc_allocate(self->pool, bytes, 256, 0));
            else self->failures += p_cuMemAlloc_v2(&plain[i], bytes) != 0;
        }
        for (int i = 0; i < BLOCKS && !self->failures; i++) {
            if (self->pool) p_trtalloc_deallocate(self->pool, blocks[i]);
            else self->failures += p_cuMemFree_v2(plain[i]) != 0;
        }
    }
    self->done = 1;
    return NULL;
}

/* Whether a capture ended. `inside`: a request inside the capture lets the library know of it. */
static CUresult captured_beside(trtalloc_allocator *pool, int mode, int blocking, int inside, int *failures) {
    CUstream stream;
    CUdeviceptr at = new_mapping(granularity());
    MUST(cuStreamCreate, &stream, blocking ? 0 : NON_BLOCKING);
    struct loader loader = {pool, 0, 0, 0};
    pthread_t thread;
    if (pthread_create(&thread, NULL, load_engines, &loader)) cannot_ask("no thread");
    MUST(cuStreamBeginCapture_v2, stream, mode);
    if (inside && !p_trtalloc_allocate_async(pool, MIB, 256, 0, stream)) cannot_ask("a request in the capture: %s", p_trtalloc_last_error());
    CUresult queued = p_cuMemsetD8Async(at, 1, granularity(), stream);
    __sync_lock_test_and_set(&loader.go, 1);
    wait_for(&loader.done, 10000);
    if (!queued) queued = p_cuMemsetD8Async(at, 2, granularity(), stream);
    CUgraph graph = NULL;
    CUresult ended = p_cuStreamEndCapture(stream, &graph);
    pthread_join(thread, NULL);
    *failures = loader.failures;
    return ended ? ended : queued;
}

enum { KNOWN = 0, DECLARED = 1 };

/* argument: mode * 4 + blocking * 2 + how the library knows of captures */
static void capture_beside_engines(long argument) {
    const int mode = (int)(argument / 4), blocking = (int)(argument / 2 % 2), declared = argument % 2 == DECLARED;
    setup();
    NEED(cuStreamBeginCapture_v2);
    trtalloc_allocator *pool = new_pool(declared ? "driver=cuda,captures=1" : "driver=cuda");
    int of_driver, of_pool;
    CUresult without = captured_beside(NULL, mode, blocking, 0, &of_driver);
    CUresult with = captured_beside(pool, mode, blocking, !declared, &of_pool);
    const char *answer = with && !without ? "ends, and cuMemAlloc's would live" : with ? "ends, as with cuMemAlloc" :
                         without ? "lives, and cuMemAlloc's ends" : "lives, as with cuMemAlloc";
    row(NULL, answer, "with the pool: %s, %d refusals; with cuMemAlloc and cuMemFree: %s, %d refusals", name_of(with), of_pool,
        name_of(without), of_driver);
}

/* ---- memory of the pool in a graph ---- */

/* A simulated driver may take a graph for a length of time. */
static void graphs_must_run(CUstream stream) {
    CUdeviceptr at = new_mapping(granularity());
    unsigned char seen = 0;
    CUgraph graph;
    CUgraphExec executable;
    MUST(cuStreamBeginCapture_v2, stream, MODE_RELAXED);
    MUST(cuMemsetD8Async, at, 2, 1, stream);
    MUST(cuStreamEndCapture, stream, &graph);
    MUST(cuMemsetD8Async, at, 1, 1, stream);
    MUST(cuGraphInstantiateWithFlags, &executable, graph, 0);
    MUST(cuGraphLaunch, executable, stream);
    MUST(cuMemcpyDtoHAsync_v2, &seen, at, 1, stream);
    MUST(cuStreamSynchronize, stream);
    if (seen != 2) cannot_ask("a graph's memset wrote nothing here");
}

static void graph_with_memory(long mode) {
    enum { BYTES = 8 << 20 };
    static unsigned char seen[4096];
    setup();
    trtalloc_allocator *pool = new_pool("driver=cuda");
    CUstream stream = new_stream();
    graphs_must_run(stream);
    CUdeviceptr out = new_mapping(granularity());
    MUST(cuMemsetD8Async, out, 0, granularity(), stream);
    MUST(cuStreamBeginCapture_v2, stream, (int)mode);
    void *block = p_trtalloc_allocate_async(pool, BYTES, 256, 0, stream);
    if (!block) cannot_ask("a request in the capture: %s", p_trtalloc_last_error());
    MUST(cuMemsetD8Async, (CUdeviceptr)block, 7, BYTES, stream);
    MUST(cuMemcpyDtoDAsync_v2, out, (CUdeviceptr)block, sizeof seen, stream);
    int freed = p_trtalloc_deallocate_async(pool, block, stream);
    CUgraph graph = NULL;
    CUresult ended = p_cuStreamEndCapture(stream, &graph);
    if (ended) {
        row(NULL, "the capture ended", "cuStreamEndCapture %s", name_of(ended));
        return;
    }
    /* What the graph has may not be handed out: a block of that size that is written now lies elsewhere. */
    void *other = p_trtalloc_allocate_async(pool, BYTES, 256, 0, stream);
    int shared = other == block;
    CUgraphExec executable;
    MUST(cuGraphInstantiateWithFlags, &executable, graph, 0);
    int wrong = 0;
    for (int launch_number = 0; launch_number < 3; launch_number++) {
        if (other) MUST(cuMemsetD8Async, (CUdeviceptr)other, 9, BYTES, stream);
        MUST(cuGraphLaunch, executable, stream);
        MUST(cuMemcpyDtoHAsync_v2, seen, out, sizeof seen, stream);
        MUST(cuStreamSynchronize, stream);
        for (size_t i = 0; i < sizeof seen; i++) wrong += seen[i] != 7;
    }
    row(NULL, wrong || shared || !freed ? "no" : "yes", "%d wrong bytes in 3 launches; the next block lies %s", wrong,
        shared ? "in the graph's memory" : "elsewhere");
}

/* ---- a block that moves gets a second address, while work on the first is pending ---- */

static void moved_while_pending(long unused) {
    (void)unused;
    enum { GATE_MS = 100, BYTES = 4096 };
    static unsigned char seen[BYTES];
    setup();
    trtalloc_allocator *pool = new_pool("driver=cuda,backing=vmm");
    CUstream stream = new_stream();
    size_t bytes = 16 * MIB;
    void *block = p_trtalloc_allocate_async(pool, bytes, 256, TRTALLOC_RESIZABLE, stream);
    if (!block) cannot_ask("trtalloc_allocate_async: %s", p_trtalloc_last_error());
    synchronize();
    struct gate gate;
    close_gate(&gate, stream);
    MUST(cuMemsetD8Async, (CUdeviceptr)block, 11, bytes, stream);
    open_gate_after(&gate, GATE_MS);
    double start = now();
    void *moved = p_trtalloc_reallocate(pool, block, 256, 256 * MIB);
    double milliseconds = (now() - start) * 1e3;
    if (!moved) {
        row(NULL, "refused", "%s", p_trtalloc_last_error());
        return;
    }
    MUST(cuMemcpyDtoHAsync_v2, seen, (CUdeviceptr)moved + bytes - BYTES, BYTES, stream);
    MUST(cuStreamSynchronize, stream);
    int wrong = 0;
    for (int i = 0; i < BYTES; i++) wrong += seen[i] != 11;
    trtalloc_stats stats = figures(pool);
    row(NULL, wrong || stats.bytes_copied ? "no" : "yes",
        "%s after %.3f ms, the write could begin after %d ms; %d wrong bytes, %llu bytes copied",
        moved == block ? "grown in place" : "moved", milliseconds, GATE_MS, wrong, (unsigned long long)stats.bytes_copied);
}

/* ---- a server: requests of eight shapes, the host two requests ahead ---- */

enum { BLOCKS = 4, SHAPES = 8, AHEAD = 2 };

struct client {
    CUstream stream;
    CUevent ends[AHEAD];
    unsigned seed;
};

/* One request: blocks that are written and freed, behind the request before. With `fixed`, the memory is the caller's. */
static int request(trtalloc_allocator *pool, struct client *client, int number, size_t unit, CUdeviceptr fixed, size_t *needs) {
    void *blocks[BLOCKS] = {NULL};
    client->seed = client->seed * 1664525 + 1013904223;
    unsigned shape = client->seed >> 24;
    size_t offset = 0;
    if (number >= AHEAD) MUST(cuEventSynchronize, client->ends[number % AHEAD]);
    int refused = 0;
    for (int i = 0; i < BLOCKS; i++) {
        size_t bytes = unit * (1 + (shape % SHAPES + (unsigned)i) % SHAPES);
        CUdeviceptr at = fixed + offset;
        offset += bytes;
        if (pool) {
            blocks[i] = p_trtalloc_allocate_async(pool, bytes, 256, 0, client->stream);
            at = (CUdeviceptr)blocks[i];
            refused += !at;
        }
        if (at) MUST(cuMemsetD8Async, at, (unsigned char)number, bytes, client->stream);
    }
    for (int i = 0; i < BLOCKS; i++)
        if (blocks[i]) p_trtalloc_deallocate_async(pool, blocks[i], client->stream);
    MUST(cuEventRecord, client->ends[number % AHEAD], client->stream);
    if (offset > *needs) *needs = offset;
    return refused;
}

static void server(long streams) {
    enum { MOST = 4, WARM = 100, REQUESTS = 300 };
    setup();
    char name[256] = "";
    MUST(cuDeviceGetName, name, (int)sizeof name - 1, 0);
    /* Simulated memory is the host's, which is slow to write. */
    size_t unit = strcasestr(name, "simulat") ? MIB / 4 : 32 * MIB, needs = 0;
    trtalloc_allocator *pool = new_pool("driver=cuda");
    struct client clients[MOST];
    CUdeviceptr fixed[MOST];
    double seconds[2];
    int refused = 0;
    trtalloc_stats before, after;
    memset(&before, 0, sizeof before);
    memset(&after, 0, sizeof after);
    for (int which = 0; which < 2; which++) { /* 0: memory of the caller's; 1: the pool's */
        for (int i = 0; i < streams; i++) {
            clients[i] = (struct client){new_stream(), {new_event(), new_event()}, (unsigned)i + 1};
            if (which == 0) MUST(cuMemAlloc_v2, &fixed[i], unit * SHAPES * BLOCKS);
            else MUST(cuMemFree_v2, fixed[i]);
        }
        double start = 0;
        for (int number = 0; number < WARM + REQUESTS; number++) {
            if (number == WARM) {
                if (which) before = figures(pool);
                synchronize();
                start = now();
            }
            for (int i = 0; i < streams; i++) refused += request(which ? pool : NULL, &clients[i], number, unit, fixed[i], &needs);
        }
        synchronize();
        seconds[which] = now() - start;
        if (which) after = figures(pool);
    }
    char answer[64];
    unsigned long long calls = after.driver_calls - before.driver_calls;
    snprintf(answer, sizeof answer, "%s%llu driver calls", refused ? "refusals, " : "", calls);
    row(NULL, answer, "in %ld requests; time %.3f ms, x%.3f of that with memory of its own; held %.2f of the needs", streams * REQUESTS,
        seconds[1] * 1e3, seconds[1] / seconds[0], (double)after.reserved / (double)(needs * (size_t)streams));
}

/* ---- a limit, and all memory back ---- */

static void all_goes_back(long unused) {
    (void)unused;
    setup();
    size_t before, after, total;
    trtalloc_allocator *pool = new_pool("driver=cuda,limit=256MiB");
    CUstream stream = new_stream();
    synchronize();
    MUST(cuMemGetInfo_v2, &before, &total);
    void *blocks[16];
    int count = 0;
    while (count < 16 && (blocks[count] = p_trtalloc_allocate_async(pool, 32 * MIB, 256, 0, stream))) count++;
    for (int i = 0; i < count; i++) p_trtalloc_deallocate_async(pool, blocks[i], stream);
    synchronize();
    p_trtalloc_destroy(pool);
    MUST(cuMemGetInfo_v2, &after, &total);
    long left = ((long)before - (long)after) >> 20;
    row(NULL, count == 8 && left == 0 ? "yes" : "no", "%d blocks of 32 MiB below a limit of 256 MiB; %ld MiB missing after destroy",
        count, left);
}

#define CAPTURES(mode, text) \
    {text ", non-blocking, beside an engine that loads", capture_beside_engines, mode * 4 + KNOWN}, \
    {text ", blocking, beside an engine that loads", capture_beside_engines, mode * 4 + 2 + KNOWN}, \
    {text ", non-blocking, beside an engine that loads, captures=1", capture_beside_engines, mode * 4 + DECLARED}, \
    {text ", blocking, beside an engine that loads, captures=1", capture_beside_engines, mode * 4 + 2 + DECLARED}

const struct question pool_questions[] = {
    CAPTURES(MODE_GLOBAL, "the pool: a global capture"),
    CAPTURES(MODE_THREAD_LOCAL, "the pool: a thread-local capture"),
    CAPTURES(MODE_RELAXED, "the pool: a relaxed capture"),
    {"the pool: memory of a graph, captured in global mode", graph_with_memory, MODE_GLOBAL},
    {"the pool: memory of a graph, captured in thread-local mode", graph_with_memory, MODE_THREAD_LOCAL},
    {"the pool: memory of a graph, captured in relaxed mode", graph_with_memory, MODE_RELAXED},
    {"the pool: a block that grows keeps what pending work writes", moved_while_pending, 0},
    {"the pool: a server with one stream", server, 1},
    {"the pool: a server with four streams", server, 4},
    {"the pool: a limit holds, and all memory goes back", all_goes_back, 0},
    {NULL, NULL, 0},
};
