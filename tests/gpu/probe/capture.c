/* What a running stream capture allows, and what ends it. */
#include "probe.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

enum { GATE_MS = 100 };

static int capture_status(CUstream stream, CUresult *code) {
    int status = -1;
    *code = p_cuStreamIsCapturing(stream, &status);
    return status;
}

/* ---- a call during a capture of the same thread, with work pending on another stream ---- */

enum call { RESERVE, CREATE, MAP, ACCESS, UNMAP, RELEASE, ADDRESS_FREE, ALLOC, FREE, CALLS };

/* A global capture, the call made inside cuThreadExchangeStreamCaptureMode(RELAXED): what an allocator does. */
enum { MODE_EXCHANGED = 3 };

static void during(long argument) {
    const int call = (int)(argument % CALLS), mode = (int)(argument / CALLS) - 1;
    setup();
    NEED(cuStreamBeginCapture_v2);
    NEED(cuStreamIsCapturing);
    const size_t unit = granularity();
    const CUallocationProp pinned = {.type = 1, .location = {1, 0}};
    const CUaccess both = {{1, 0}, 3};
    CUdeviceptr range = new_range(4 * unit), spare = new_range(unit), plain, made;
    CUhandle to_map = new_handle(unit), without_access = new_handle(unit), whole = new_handle(unit);
    CUhandle to_release = new_handle(unit), created;
    MUST(cuMemMap, range + unit, unit, 0, without_access, 0);
    MUST(cuMemMap, range + 2 * unit, unit, 0, whole, 0);
    give_access(range + 2 * unit, unit);
    MUST(cuMemAlloc_v2, &plain, unit);
    CUstream capturing = new_stream(), busy = new_stream();
    synchronize();

    struct gate gate;
    close_gate(&gate, busy);
    if (mode != MODE_NONE) MUST(cuStreamBeginCapture_v2, capturing, mode == MODE_EXCHANGED ? MODE_GLOBAL : mode);
    int exchanged = MODE_RELAXED;
    if (mode == MODE_EXCHANGED) MUST(cuThreadExchangeStreamCaptureMode, &exchanged);
    open_gate_after(&gate, GATE_MS);
    double start = now();
    CUresult code = 0;
    switch (call) {
    case RESERVE: code = p_cuMemAddressReserve(&made, unit, 0, 0, 0); break;
    case CREATE: code = p_cuMemCreate(&created, unit, &pinned, 0); break;
    case MAP: code = p_cuMemMap(range, unit, 0, to_map, 0); break;
    case ACCESS: code = p_cuMemSetAccess(range + unit, unit, &both, 1); break;
    case UNMAP: code = p_cuMemUnmap(range + 2 * unit, unit); break;
    case RELEASE: code = p_cuMemRelease(to_release); break;
    case ADDRESS_FREE: code = p_cuMemAddressFree(spare, unit); break;
    case ALLOC: code = p_cuMemAlloc_v2(&made, unit); break;
    case FREE: code = p_cuMemFree_v2(plain); break;
    }
    double milliseconds = (now() - start) * 1e3;
    if (mode == MODE_EXCHANGED) p_cuThreadExchangeStreamCaptureMode(&exchanged);

    char answer[64];
    const char *waits = milliseconds > 0.8 * GATE_MS ? "waits" : "no wait";
    if (mode == MODE_NONE) {
        snprintf(answer, sizeof answer, "%s, %s", code ? "refused" : "allowed", waits);
        row(NULL, answer, "code %u, %.3f ms; the pending work ended after %d ms", code, milliseconds, GATE_MS);
        return;
    }
    CUresult asked;
    int status = capture_status(capturing, &asked);
    CUgraph graph = NULL;
    CUresult ended = p_cuStreamEndCapture(capturing, &graph);
    snprintf(answer, sizeof answer, "%s, %s, capture %s", code ? "refused" : "allowed", waits,
             ended ? "ended" : "lives");
    row(NULL, answer, "code %u, %.3f ms; status after %d (code %u); cuStreamEndCapture %u", code, milliseconds, status,
        asked, ended);
}

/* ---- what one thread's call does to another's capture ---- */

struct stranger {
    int mode;
    volatile int capturing, go_on;
    CUresult began, status_code, ended;
    int status;
    CUstream stream;
};

static void *stranger(void *data) {
    struct stranger *self = data;
    p_cuCtxSetCurrent(primary);
    self->began = p_cuStreamBeginCapture_v2(self->stream, self->mode);
    __sync_lock_test_and_set(&self->capturing, 1);
    wait_for(&self->go_on, 30000);
    self->status = capture_status(self->stream, &self->status_code);
    CUgraph graph = NULL;
    self->ended = p_cuStreamEndCapture(self->stream, &graph);
    return NULL;
}

enum strange { CONTEXT_EVENT, SYNCHRONIZE, EVENT_QUERY, PLAIN_ALLOC, STREAM_ID, STREAM_CONTEXT, CONTEXT_ID, PRIMARY };

/* argument: call * 6 + the stranger's mode * 2 + whether we are relaxed */
static void to_others(long argument) {
    const int call = (int)(argument / 6), relaxed = (int)(argument % 2);
    setup();
    NEED(cuStreamBeginCapture_v2);
    if (call == CONTEXT_EVENT) NEED(cuCtxRecordEvent);
    struct stranger other;
    memset(&other, 0, sizeof other);
    other.mode = (int)(argument % 6 / 2);
    other.stream = new_stream();
    CUevent event = new_event();
    CUdeviceptr made;
    CUstream ours = new_stream();
    CUcontext context;
    unsigned long long id;
    if (call == STREAM_ID) NEED(cuStreamGetId);
    if (call == CONTEXT_ID) NEED(cuCtxGetId);
    pthread_t thread;
    if (pthread_create(&thread, NULL, stranger, &other)) not_asked("pthread_create", 0);
    wait_for(&other.capturing, 30000);
    if (other.began) not_asked("cuStreamBeginCapture_v2", other.began);
    int mode = MODE_RELAXED;
    if (relaxed) MUST(cuThreadExchangeStreamCaptureMode, &mode);
    CUresult code = 0;
    switch (call) {
    case CONTEXT_EVENT: code = p_cuCtxRecordEvent(primary, event); break;
    case SYNCHRONIZE: code = p_cuCtxSynchronize(); break;
    case EVENT_QUERY: code = p_cuEventQuery(event); break;
    case PLAIN_ALLOC: code = p_cuMemAlloc_v2(&made, 1 << 20); break;
    case STREAM_ID: code = p_cuStreamGetId(ours, &id); break;
    case STREAM_CONTEXT: code = p_cuStreamGetCtx(ours, &context); break;
    case CONTEXT_ID: code = p_cuCtxGetId(primary, &id); break;
    case PRIMARY:
        code = p_cuDevicePrimaryCtxRetain(&context, 0);
        if (!code) code = p_cuDevicePrimaryCtxRelease_v2(0);
        break;
    }
    __sync_lock_test_and_set(&other.go_on, 1);
    pthread_join(thread, NULL);
    row(NULL, other.ended ? "yes" : "no", "our call gave %u; its status then %d (code %u), its cuStreamEndCapture %u",
        code, other.status, other.status_code, other.ended);
}

/* ---- queries of the stream that captures ---- */

enum { ASK_ID, ASK_CONTEXT, ASK_INFO };

/* argument: question * 4 + mode, where MODE_EXCHANGED is as above */
static void asked_while_capturing(long argument) {
    const int question = (int)(argument / 4), mode = (int)(argument % 4);
    setup();
    NEED(cuStreamBeginCapture_v2);
    if (question == ASK_ID) NEED(cuStreamGetId);
    if (question == ASK_INFO) NEED(cuStreamGetCaptureInfo_v2);
    CUstream stream = new_stream();
    MUST(cuStreamBeginCapture_v2, stream, mode == MODE_EXCHANGED ? MODE_GLOBAL : mode);
    int exchanged = MODE_RELAXED;
    if (mode == MODE_EXCHANGED) MUST(cuThreadExchangeStreamCaptureMode, &exchanged);
    unsigned long long id;
    CUcontext context;
    int status;
    CUresult code = 0, asked;
    switch (question) {
    case ASK_ID: code = p_cuStreamGetId(stream, &id); break;
    case ASK_CONTEXT: code = p_cuStreamGetCtx(stream, &context); break;
    case ASK_INFO: code = p_cuStreamGetCaptureInfo_v2(stream, &status, &id, NULL, NULL, NULL); break;
    }
    if (mode == MODE_EXCHANGED) p_cuThreadExchangeStreamCaptureMode(&exchanged);
    status = capture_status(stream, &asked);
    CUgraph graph = NULL;
    CUresult ended = p_cuStreamEndCapture(stream, &graph);
    char answer[64];
    snprintf(answer, sizeof answer, "%s, capture %s", code ? "refused" : "allowed", ended ? "ended" : "lives");
    row(NULL, answer, "code %u; status after %d (code %u); cuStreamEndCapture %u", code, status, asked, ended);
}

/* ---- what the default stream knows of a capture ---- */

static void seen_from_legacy(long blocking) {
    setup();
    CUstream stream;
    MUST(cuStreamCreate, &stream, blocking ? 0 : NON_BLOCKING);
    MUST(cuStreamBeginCapture_v2, stream, MODE_RELAXED);
    CUresult code, mine;
    int status = capture_status(NULL, &code);
    int of_stream = capture_status(stream, &mine);
    CUgraph graph = NULL;
    CUresult ended = p_cuStreamEndCapture(stream, &graph);
    row(NULL, code == CAPTURE_IMPLICIT ? "as implicit" : code == 0 && status == 0 ? "not at all" : "otherwise",
        "code %u, status %d; the stream's own %d (code %u); cuStreamEndCapture %u", code, status, of_stream, mine,
        ended);
}

/* ---- events across a capture's edge ---- */

static void captured_event(long unused) {
    (void)unused;
    setup();
    CUstream stream = new_stream();
    CUevent event = new_event();
    MUST(cuStreamBeginCapture_v2, stream, MODE_RELAXED);
    CUresult recorded = p_cuEventRecord(event, stream), queried = p_cuEventQuery(event), asked;
    int status = capture_status(stream, &asked);
    CUgraph graph = NULL;
    CUresult ended = p_cuStreamEndCapture(stream, &graph);
    row(NULL, queried ? ended ? "refused, capture ended" : "refused, capture lives" : "allowed",
        "cuEventRecord %u, cuEventQuery %u, status %d, cuStreamEndCapture %u", recorded, queried, status, ended);
}

#define DURING_MODE(mode, text) \
    {"cuMemAddressReserve during " text, during, (mode + 1) * CALLS + RESERVE}, \
    {"cuMemCreate during " text, during, (mode + 1) * CALLS + CREATE}, \
    {"cuMemMap during " text, during, (mode + 1) * CALLS + MAP}, \
    {"cuMemSetAccess during " text, during, (mode + 1) * CALLS + ACCESS}, \
    {"cuMemUnmap during " text, during, (mode + 1) * CALLS + UNMAP}, \
    {"cuMemRelease during " text, during, (mode + 1) * CALLS + RELEASE}, \
    {"cuMemAddressFree during " text, during, (mode + 1) * CALLS + ADDRESS_FREE}, \
    {"cuMemAlloc during " text, during, (mode + 1) * CALLS + ALLOC}, \
    {"cuMemFree during " text, during, (mode + 1) * CALLS + FREE}

#define TO_OTHERS(call, text) \
    {text " ends another thread's global capture", to_others, call * 6 + 0}, \
    {text " ends another thread's thread-local capture", to_others, call * 6 + 2}, \
    {text " ends another thread's relaxed capture", to_others, call * 6 + 4}, \
    {text ", relaxed, ends another thread's global capture", to_others, call * 6 + 1}, \
    {text ", relaxed, ends another thread's thread-local capture", to_others, call * 6 + 3}, \
    {text ", relaxed, ends another thread's relaxed capture", to_others, call * 6 + 5}

#define ASKED(question, text) \
    {text " of a stream in a global capture", asked_while_capturing, question * 4 + MODE_GLOBAL}, \
    {text " of a stream in a relaxed capture", asked_while_capturing, question * 4 + MODE_RELAXED}, \
    {text " of a stream in a global capture, thread exchanged to relaxed", asked_while_capturing, \
     question * 4 + MODE_EXCHANGED}

const struct question capture_questions[] = {
    ASKED(ASK_ID, "cuStreamGetId"),
    ASKED(ASK_CONTEXT, "cuStreamGetCtx"),
    ASKED(ASK_INFO, "cuStreamGetCaptureInfo"),
    TO_OTHERS(STREAM_ID, "cuStreamGetId"),
    TO_OTHERS(STREAM_CONTEXT, "cuStreamGetCtx"),
    TO_OTHERS(CONTEXT_ID, "cuCtxGetId"),
    TO_OTHERS(PRIMARY, "cuDevicePrimaryCtxRetain and Release"),
    TO_OTHERS(CONTEXT_EVENT, "cuCtxRecordEvent"),
    TO_OTHERS(SYNCHRONIZE, "cuCtxSynchronize"),
    TO_OTHERS(EVENT_QUERY, "cuEventQuery"),
    TO_OTHERS(PLAIN_ALLOC, "cuMemAlloc"),
    {"the default stream sees a blocking stream's capture", seen_from_legacy, 1},
    {"the default stream sees a non-blocking stream's capture", seen_from_legacy, 0},
    {"querying an event recorded in a capture", captured_event, 0},
    DURING_MODE(MODE_NONE, "no capture"),
    DURING_MODE(MODE_GLOBAL, "a global capture"),
    DURING_MODE(MODE_THREAD_LOCAL, "a thread-local capture"),
    DURING_MODE(MODE_RELAXED, "a relaxed capture"),
    DURING_MODE(MODE_EXCHANGED, "a global capture, thread exchanged to relaxed"),
    {NULL, NULL, 0},
};
