/* Green contexts, contexts that were destroyed, ids of default streams, and bodies of conditional nodes. */
#define _GNU_SOURCE
#include "probe.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

/* ---- green contexts ---- */

static CUgreenCtx green;
static CUcontext green_context;

/* A green context of all multiprocessors. The layout of a resource is not needed: the driver writes and reads it. */
static void new_green(void) {
    static unsigned long long resource[128];
    CUresourceDesc description;
    setup();
    MUST(cuDeviceGetDevResource, 0, resource, 1); /* multiprocessors */
    MUST(cuDevResourceGenerateDesc, &description, resource, 1);
    MUST(cuGreenCtxCreate, &green, description, 0, 1); /* with a default stream */
    MUST(cuCtxFromGreenCtx, &green_context, green);
}

static CUstream new_green_stream(void) {
    MUST(cuCtxSetCurrent, green_context);
    CUstream stream = new_stream();
    MUST(cuCtxSetCurrent, primary);
    return stream;
}

enum { BY_CONTEXT, BY_STREAM, DESTROYED };

/* Whether an event of the primary context waits for a green context's work. */
static void event_covers_green(long how) {
    new_green();
    if (how != BY_STREAM) NEED(cuCtxRecordEvent);
    gates_must_hold();
    CUstream stream = new_green_stream();
    CUevent event = new_event();
    struct gate gate;
    close_gate(&gate, stream);
    double destruction = 0;
    if (how == DESTROYED) {
        open_gate_after(&gate, 2000); /* so that a driver that waits does not hang */
        double start = now();
        MUST(cuStreamDestroy_v2, stream);
        MUST(cuGreenCtxDestroy, green);
        destruction = now() - start;
    }
    CUresult recorded = how == BY_STREAM ? p_cuEventRecord(event, stream) : p_cuCtxRecordEvent(primary, event);
    CUresult before = p_cuEventQuery(event);
    int pending = !gate.open;
    open_gate(&gate);
    double end = now() + 10;
    CUresult after;
    do after = p_cuEventQuery(event);
    while (after == NOT_READY && now() < end);
    const char *answer = before == NOT_READY && after == 0 ? "yes" : "no";
    row(NULL, recorded ? "refused" : pending ? answer : "its work was over",
        "recorded %u; the event while the work is pending %u, when it is done %u; destroyed in %.3f ms", recorded, before,
        after, destruction * 1e3);
}

static CUresult pushed;

static void *push_green(void *unused) {
    (void)unused;
    pushed = p_cuCtxSetCurrent(green_context);
    return NULL;
}

static void green_in_two_threads(long unused) {
    (void)unused;
    new_green();
    MUST(cuCtxSetCurrent, green_context);
    pthread_t thread;
    pthread_create(&thread, NULL, push_green, NULL);
    pthread_join(thread, NULL);
    row(NULL, pushed ? "refused" : "allowed", "code %u", pushed);
}

static void default_stream_captures(long of_green) {
    if (of_green) {
        new_green();
        MUST(cuCtxSetCurrent, green_context);
    } else setup();
    NEED(cuStreamBeginCapture_v2);
    NEED(cuStreamIsCapturing);
    CUresult code = p_cuStreamBeginCapture_v2(NULL, MODE_RELAXED);
    int status = 0;
    CUresult asked = p_cuStreamIsCapturing(NULL, &status);
    row(NULL, code ? "no" : "yes", "begin %u; cuStreamIsCapturing %u, status %d", code, asked, status);
}

static void green_of_default_stream(long unused) {
    (void)unused;
    new_green();
    NEED(cuStreamGetCtx_v2);
    MUST(cuCtxSetCurrent, green_context);
    CUcontext context = NULL;
    CUgreenCtx found = NULL;
    CUresult code = p_cuStreamGetCtx_v2(NULL, &context, &found);
    row(NULL, code ? "refused" : context == primary && found == green ? "the primary and the green one" : "another",
        "code %u: %p and %p; primary %p, green %p", code, (void *)context, (void *)found, (void *)primary, (void *)green);
}

/* ---- contexts that were destroyed ---- */

static void id_of_a_destroyed_context(long unused) {
    (void)unused;
    setup();
    NEED(cuCtxGetId);
    CUcontext context;
    unsigned long long before = 0, after = 0;
    MUST(cuCtxCreate_v2, &context, 0, 0);
    MUST(cuCtxGetId, context, &before);
    MUST(cuCtxDestroy_v2, context);
    CUresult code = p_cuCtxGetId(context, &after);
    row(NULL, code ? "refused" : "allowed", "code %u; id %llu before, %llu after", code, before, after);
}

/* ---- default streams ---- */

static unsigned long long ids[2];
static CUresult id_codes[2];

static void *default_stream_id(void *at) {
    int number = *(int *)at;
    p_cuCtxSetCurrent(primary);
    id_codes[number] = p_cuStreamGetId((CUstream)2, &ids[number]); /* CU_STREAM_PER_THREAD */
    return NULL;
}

static void ids_of_two_threads(long unused) {
    (void)unused;
    setup();
    NEED(cuStreamGetId);
    for (int number = 0; number < 2; number++) {
        pthread_t thread;
        pthread_create(&thread, NULL, default_stream_id, &number);
        pthread_join(thread, NULL);
    }
    row(NULL, id_codes[0] || id_codes[1] ? "refused" : ids[0] == ids[1] ? "the same" : "two", "%llu and %llu, codes %u and %u",
        ids[0], ids[1], id_codes[0], id_codes[1]);
}

/* ---- bodies of conditional nodes ---- */

/* CUgraphNodeParams with CUDA_CONDITIONAL_NODE_PARAMS. */
struct conditional {
    int type; /* 13: conditional */
    int reserved[3];
    unsigned long long handle;
    int condition; /* 0: if */
    unsigned count;
    CUgraph *bodies; /* by the driver */
    CUcontext context;
    char pad[256 - 48];
};

static volatile int called;

static void on_destroy(void *unused) {
    (void)unused;
    __sync_lock_test_and_set(&called, 1);
}

static void user_object_of_a_body(long unused) {
    (void)unused;
    setup();
    NEED(cuGraphCreate);
    NEED(cuGraphConditionalHandleCreate);
    NEED(cuGraphAddNode);
    NEED(cuStreamBeginCaptureToGraph);
    CUgraph graph, body, same;
    MUST(cuGraphCreate, &graph, 0);
    struct conditional parameters;
    memset(&parameters, 0, sizeof parameters);
    parameters.type = 13;
    parameters.count = 1;
    parameters.context = primary;
    MUST(cuGraphConditionalHandleCreate, &parameters.handle, graph, primary, 1, 1);
    void *node;
    MUST(cuGraphAddNode, &node, graph, NULL, 0, &parameters);
    body = parameters.bodies[0];
    CUstream stream = new_stream();
    CUdeviceptr at = new_mapping(granularity());
    MUST(cuStreamBeginCaptureToGraph, stream, body, NULL, NULL, 0, MODE_RELAXED);
    int status = 0;
    unsigned long long id = 0;
    CUgraph shown = NULL;
    MUST(cuStreamGetCaptureInfo_v2, stream, &status, &id, &shown, NULL, NULL);
    CUuserObject object;
    MUST(cuUserObjectCreate, &object, NULL, on_destroy, 1, 1);
    MUST(cuGraphRetainUserObject, shown, object, 1, 1); /* move */
    MUST(cuMemsetD8Async, at, 1, granularity(), stream);
    MUST(cuStreamEndCapture, stream, &same);
    CUgraphExec executable;
    MUST(cuGraphInstantiateWithFlags, &executable, graph, 0);
    MUST(cuGraphDestroy, graph);
    int early = wait_for(&called, 500);
    CUresult launched = p_cuGraphLaunch(executable, stream);
    CUresult done = p_cuStreamSynchronize(stream);
    int during = wait_for(&called, 100);
    MUST(cuGraphExecDestroy, executable);
    int later = wait_for(&called, 2000);
    row(NULL, !early && !during && later ? "yes" : "no",
        "the capture's graph is %s; called with the executable alive: %s; after its destruction: %s; launch %u, %u",
        shown == body ? "the body" : "another", early || during ? "yes" : "no", later ? "yes" : "no", launched, done);
}

const struct question green_questions[] = {
    {"cuCtxRecordEvent of the primary context covers a green context's work", event_covers_green, BY_CONTEXT},
    {"an event of the primary context covers work on a green context's stream", event_covers_green, BY_STREAM},
    {"cuCtxRecordEvent of the primary context covers a destroyed green context's work", event_covers_green, DESTROYED},
    {"a green context is made current in a second thread", green_in_two_threads, 0},
    {"cuStreamGetCtx_v2 of a green context's default stream", green_of_default_stream, 0},
    {"a green context's default stream can be captured", default_stream_captures, 1},
    {"the primary context's default stream can be captured", default_stream_captures, 0},
    {"cuCtxGetId of a destroyed context", id_of_a_destroyed_context, 0},
    {"cuStreamGetId of the default streams of two threads, one after the other", ids_of_two_threads, 0},
    {"an executable keeps the user objects of a conditional node's body", user_object_of_a_body, 0},
    {NULL, NULL, 0},
};
