/* Destroyed streams, user objects, a context that is reset. */
#define _GNU_SOURCE
#include "probe.h"

#include <pthread.h>
#include <stdio.h>

enum { GATE_MS = 150 };

/* ---- streams that die with work pending ---- */

static void context_event_covers(long destroyed) {
    setup();
    NEED(cuCtxRecordEvent);
    NEED(cuStreamDestroy_v2);
    gates_must_hold();
    CUstream stream = new_stream();
    CUevent event = new_event();
    CUdeviceptr at = new_mapping(granularity());
    synchronize();
    struct gate gate;
    close_gate(&gate, stream);
    MUST(cuMemsetD8Async, at, 1, granularity(), stream);
    if (destroyed) MUST(cuStreamDestroy_v2, stream);
    CUresult recorded = p_cuCtxRecordEvent(primary, event);
    CUresult before = p_cuEventQuery(event);
    pause_ms(20);
    CUresult still = p_cuEventQuery(event);
    open_gate(&gate);
    double end = now() + 10;
    CUresult after;
    do after = p_cuEventQuery(event);
    while (after == NOT_READY && now() < end);
    row(NULL, before == NOT_READY && still == NOT_READY && after == 0 ? "yes" : "no",
        "cuCtxRecordEvent %u; the event while the work is pending %u and %u, when it is done %u", recorded, before,
        still, after);
}

static void destroy_waits(long unused) {
    (void)unused;
    setup();
    NEED(cuStreamDestroy_v2);
    CUstream stream = new_stream();
    struct gate gate;
    close_gate(&gate, stream);
    open_gate_after(&gate, GATE_MS);
    double start = now();
    CUresult code = p_cuStreamDestroy_v2(stream);
    double milliseconds = (now() - start) * 1e3;
    row(NULL, milliseconds > 0.8 * GATE_MS ? "waits" : "no wait",
        "code %u after %.3f ms; the work ended after %d ms", code, milliseconds, GATE_MS);
}

static void handle_reuse(long unused) {
    (void)unused;
    enum { TRIES = 64 };
    setup();
    NEED(cuStreamDestroy_v2);
    CUstream dead = new_stream();
    unsigned long long old_id = 0, new_id = 0;
    if (p_cuStreamGetId) MUST(cuStreamGetId, dead, &old_id);
    struct gate gate;
    close_gate(&gate, dead);
    open_gate_after(&gate, 5000); /* so that a driver that waits does not hang */
    double start = now();
    MUST(cuStreamDestroy_v2, dead);
    for (int i = 1; i <= TRIES; i++) {
        CUstream stream = new_stream();
        if (stream != dead) continue;
        if (p_cuStreamGetId) MUST(cuStreamGetId, stream, &new_id);
        int pending = !gate.open;
        row(NULL, pending ? "yes" : "yes, but not while pending",
            "the handle came back as stream number %d; ids %llu and %llu; %.3f ms after", i, old_id, new_id,
            (now() - start) * 1e3);
        open_gate(&gate);
        return;
    }
    row(NULL, "not seen", "%d new streams, none at the dead one's handle; old id %llu", TRIES, old_id);
    open_gate(&gate);
}

/* ---- user objects ---- */

struct watch {
    volatile int called;
    double when;
    pthread_t thread;
    int makes_a_call;
    CUresult code;
};

static void on_destroy(void *data) {
    struct watch *watch = data;
    watch->when = now();
    watch->thread = pthread_self();
    if (watch->makes_a_call) {
        size_t free_bytes, total;
        watch->code = p_cuMemGetInfo_v2(&free_bytes, &total);
    }
    __sync_lock_test_and_set(&watch->called, 1);
}

/* A graph of one memset, captured, with a user object hung on it while it was under capture. */
static CUgraph watched_graph(struct watch *watch) {
    NEED(cuStreamBeginCapture_v2);
    NEED(cuStreamEndCapture);
    CUstream stream = new_stream();
    CUdeviceptr at = new_mapping(granularity());
    MUST(cuStreamBeginCapture_v2, stream, MODE_RELAXED);
    MUST(cuMemsetD8Async, at, 1, granularity(), stream);
    int status = 0;
    unsigned long long id = 0;
    CUgraph graph = NULL;
    MUST(cuStreamGetCaptureInfo_v2, stream, &status, &id, &graph, NULL, NULL);
    CUuserObject object;
    MUST(cuUserObjectCreate, &object, watch, on_destroy, 1, 1);
    MUST(cuGraphRetainUserObject, graph, object, 1, 1); /* move */
    MUST(cuStreamEndCapture, stream, &graph);
    return graph;
}

static void user_object_graph_only(long unused) {
    (void)unused;
    setup();
    static struct watch watch;
    CUgraph graph = watched_graph(&watch);
    double start = now();
    MUST(cuGraphDestroy, graph);
    int alone = wait_for(&watch.called, 2000);
    if (!alone) p_cuCtxSynchronize();
    int after = alone || wait_for(&watch.called, 2000);
    row(NULL, alone ? "yes" : after ? "after the next driver call" : "no",
        "%.3f ms after cuGraphDestroy, on %s thread", watch.called ? (watch.when - start) * 1e3 : -1.0,
        watch.called && pthread_equal(watch.thread, pthread_self()) ? "the same" : "another");
}

static void user_object_kept_by_executable(long unused) {
    (void)unused;
    setup();
    static struct watch watch;
    CUgraph graph = watched_graph(&watch);
    CUgraphExec executable;
    MUST(cuGraphInstantiateWithFlags, &executable, graph, 0);
    MUST(cuGraphDestroy, graph);
    int early = wait_for(&watch.called, 300);
    double start = now();
    MUST(cuGraphExecDestroy, executable);
    int later = wait_for(&watch.called, 2000);
    row(NULL, !early && later ? "yes" : "no",
        "called with the executable alive: %s; after its destruction: %s, %.3f ms", early ? "yes" : "no",
        later ? "yes" : "no", later && !early ? (watch.when - start) * 1e3 : -1.0);
}

/* The gate is on the launching stream, ahead of the launch. Where the driver has them, a memory wait makes it, so that
 * no host function holds the thread that the callback may need. */
static void user_object_during_launch(long unused) {
    (void)unused;
    setup();
    static struct watch watch;
    CUgraph graph = watched_graph(&watch);
    CUgraphExec executable;
    MUST(cuGraphInstantiateWithFlags, &executable, graph, 0);
    CUstream stream = new_stream();
    MUST(cuGraphLaunch, executable, stream); /* a first launch, so that nothing is lazy any more */
    MUST(cuStreamSynchronize, stream);
    struct gate gate = {0, 0};
    void *flag = NULL;
    CUdeviceptr flag_on_device = 0;
    const char *with = "a host function";
    if (p_cuStreamWaitValue32_v2 && p_cuMemHostAlloc && p_cuMemHostGetDevicePointer_v2 &&
        !p_cuMemHostAlloc(&flag, 64, 2) && !p_cuMemHostGetDevicePointer_v2(&flag_on_device, flag, 0)) {
        *(volatile unsigned *)flag = 0;
        if (!p_cuStreamWaitValue32_v2(stream, flag_on_device, 1, 0)) with = "a memory wait";
    }
    int by_memory = with[2] == 'm';
    if (!by_memory) close_gate(&gate, stream);
    MUST(cuGraphLaunch, executable, stream);
    MUST(cuGraphDestroy, graph);
    MUST(cuGraphExecDestroy, executable);
    int early = wait_for(&watch.called, 300);
    double start = now();
    if (by_memory) *(volatile unsigned *)flag = 1;
    else open_gate(&gate);
    int later = wait_for(&watch.called, 3000);
    CUresult code = p_cuStreamSynchronize(stream);
    int last = later || wait_for(&watch.called, 2000);
    const char *when = last ? "after the next driver call" : "never";
    row(NULL, early ? "before the launch ended" : later ? "after, by itself" : when,
        "launch held by %s; called %.3f ms after it could run; the stream says %u", with,
        watch.called ? (watch.when - start) * 1e3 : -1.0, code);
}

static void user_object_driver_call(long unused) {
    (void)unused;
    setup();
    NEED(cuMemGetInfo_v2);
    static struct watch watch = {.makes_a_call = 1};
    CUgraph graph = watched_graph(&watch);
    MUST(cuGraphDestroy, graph);
    int called = wait_for(&watch.called, 5000);
    row(NULL, !called ? "not called" : watch.code ? "refused" : "allowed", "code %u", watch.code);
}

/* ---- cuDevicePrimaryCtxReset ---- */

enum after_reset { CURRENT, DEVICE, SAME_HANDLE, SAME_ID, EVENT, UNMAP, WRITE, RELEASE, FREE_RANGE };

static void after_reset(long what) {
    setup();
    NEED(cuDevicePrimaryCtxReset_v2);
    const size_t unit = granularity();
    CUdeviceptr at = new_range(unit);
    CUhandle handle = new_handle(unit);
    MUST(cuMemMap, at, unit, 0, handle, 0);
    give_access(at, unit);
    CUevent event = new_event();
    CUstream stream = new_stream();
    MUST(cuEventRecord, event, stream);
    synchronize();
    unsigned long long old_id = 0, new_id = 0;
    if (p_cuCtxGetId) p_cuCtxGetId(primary, &old_id);
    MUST(cuDevicePrimaryCtxReset_v2, 0);

    CUcontext current = NULL, again = NULL;
    CUdevice device = -1;
    CUresult code;
    switch (what) {
    case CURRENT:
        code = p_cuCtxGetCurrent(&current);
        row(NULL, code ? "an error" : current == primary ? "the old one" : current ? "another" : "none", "code %u",
            code);
        return;
    case DEVICE:
        code = p_cuCtxGetDevice(&device);
        row(NULL, code ? "an error" : "the device", "code %u, device %d", code, device);
        return;
    case EVENT:
        code = p_cuEventQuery(event);
        row(NULL, code ? "an error" : "completed", "code %u", code);
        return;
    }
    MUST(cuDevicePrimaryCtxRetain, &again, 0);
    if (what == SAME_HANDLE) {
        row(NULL, again == primary ? "the same" : "another", "%p and %p", (void *)primary, (void *)again);
        return;
    }
    if (what == SAME_ID) {
        NEED(cuCtxGetId);
        code = p_cuCtxGetId(again, &new_id);
        row(NULL, new_id == old_id ? "the same" : "another", "%llu and %llu, code %u", old_id, new_id, code);
        return;
    }
    MUST(cuCtxSetCurrent, again);
    switch (what) {
    case UNMAP:
        code = p_cuMemUnmap(at, unit);
        row(NULL, code ? "refused" : "allowed", "code %u: the mapping is %s", code, code ? "gone" : "still there");
        return;
    case WRITE: {
        CUstream fresh = new_stream();
        code = p_cuMemsetD8Async(at, 1, unit, fresh);
        CUresult after = p_cuStreamSynchronize(fresh);
        row(NULL, code || after ? "refused" : "allowed", "cuMemsetD8Async %u, cuStreamSynchronize %u", code, after);
        return;
    }
    case RELEASE:
        code = p_cuMemRelease(handle);
        row(NULL, code ? "refused" : "allowed", "code %u", code);
        return;
    case FREE_RANGE:
        code = p_cuMemUnmap(at, unit);
        CUresult freed = p_cuMemAddressFree(at, unit);
        row(NULL, freed ? "refused" : "allowed", "cuMemUnmap %u, cuMemAddressFree %u", code, freed);
        return;
    }
}

const struct question lifetime_questions[] = {
    {"cuCtxRecordEvent covers work on a living stream", context_event_covers, 0},
    {"cuCtxRecordEvent covers work of a destroyed stream", context_event_covers, 1},
    {"cuStreamDestroy waits for the stream's work", destroy_waits, 0},
    {"a dead stream's handle comes back while its work is pending", handle_reuse, 0},
    {"a user object is destroyed by itself when its graph goes", user_object_graph_only, 0},
    {"an executable keeps its graph's user objects", user_object_kept_by_executable, 0},
    {"a user object is destroyed, when its executable goes during a launch", user_object_during_launch, 0},
    {"a driver call in a user object's destructor", user_object_driver_call, 0},
    {"after a primary context reset, cuCtxGetCurrent says", after_reset, CURRENT},
    {"after a primary context reset, cuCtxGetDevice says", after_reset, DEVICE},
    {"after a primary context reset, an old event is", after_reset, EVENT},
    {"after a primary context reset, the new context's handle is", after_reset, SAME_HANDLE},
    {"after a primary context reset, the new context's id is", after_reset, SAME_ID},
    {"after a primary context reset, cuMemUnmap of an old mapping", after_reset, UNMAP},
    {"after a primary context reset, a write to an old mapping", after_reset, WRITE},
    {"after a primary context reset, cuMemRelease of an old handle", after_reset, RELEASE},
    {"after a primary context reset, cuMemAddressFree of an old range", after_reset, FREE_RANGE},
    {NULL, NULL, 0},
};
