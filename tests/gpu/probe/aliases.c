/* One handle at several addresses: what work through one of them shows at the other, and what that costs. */
#include "probe.h"

#include <stdio.h>
#include <string.h>

enum { WORDS = 1 << 16, MOST_MS = 3000, ROUNDS = 16 };

static void given(CUdeviceptr at, size_t bytes, CUhandle handle) {
    MUST(cuMemMap, at, bytes, 0, handle, 0);
    give_access(at, bytes);
}

/* Both addresses of one handle; the same one twice where `same`. */
static void addresses(int same, CUdeviceptr *first, CUdeviceptr *second, size_t bytes) {
    CUhandle handle = new_handle(bytes);
    *first = *second = new_range(bytes);
    given(*first, bytes, handle);
    if (same) return;
    *second = new_range(bytes);
    given(*second, bytes, handle);
}

static void runs(long unused) {
    (void)unused;
    const char *why;
    setup();
    if (!kernels_run(&why)) cannot_ask("%s", why);
    row(NULL, "yes", "%s", why);
}

static void write_words(CUdeviceptr at, unsigned value, CUstream stream) {
    unsigned count = WORDS;
    void *arguments[] = {&at, &value, &count};
    launch(kernel("write_words"), 32, 256, stream, arguments);
}

static void count_wrong(CUdeviceptr at, unsigned value, struct words wrong, CUstream stream) {
    unsigned count = WORDS;
    void *arguments[] = {&at, &value, &count, &wrong.device};
    launch(kernel("count_wrong"), 32, 256, stream, arguments);
}

/* 0: both kernels on one stream; 1: on two, the second behind an event; 2: both in a graph */
static void kernel_after_kernel(long how) {
    setup();
    kernels_must_run();
    CUdeviceptr first, second;
    addresses(0, &first, &second, granularity());
    CUstream writer = new_stream(), reader = how == 1 ? new_stream() : writer;
    CUevent event = new_event();
    struct words wrong = new_words(1);
    synchronize();
    unsigned long long all = 0;
    for (unsigned round = 1; round <= ROUNDS; round++) {
        CUdeviceptr to = round % 2 ? first : second, from = round % 2 ? second : first;
        CUgraph graph = NULL;
        CUgraphExec executable = NULL;
        if (how == 2) MUST(cuStreamBeginCapture_v2, writer, MODE_RELAXED);
        write_words(to, round, writer);
        if (how == 1) {
            MUST(cuEventRecord, event, writer);
            MUST(cuStreamWaitEvent, reader, event, 0);
        }
        count_wrong(from, round, wrong, reader);
        if (how == 2) {
            MUST(cuStreamEndCapture, writer, &graph);
            MUST(cuGraphInstantiateWithFlags, &executable, graph, 0);
            MUST(cuGraphLaunch, executable, writer);
        }
        MUST(cuStreamSynchronize, reader);
        all += wrong.host[0];
        wrong.host[0] = 0;
    }
    row(NULL, all ? "no" : "yes", "%llu of %llu words were old", all, (unsigned long long)ROUNDS * WORDS);
}

/* An address is unmapped and mapped to another handle, between two kernels that read it. */
static void mapped_anew(long unused) {
    (void)unused;
    setup();
    kernels_must_run();
    const size_t unit = granularity();
    CUhandle old = new_handle(unit), fresh = new_handle(unit);
    CUdeviceptr at = new_range(unit), elsewhere = new_range(unit);
    CUstream stream = new_stream();
    struct words wrong = new_words(1);
    given(elsewhere, unit, fresh);
    given(at, unit, old);
    write_words(elsewhere, 2, stream);
    write_words(at, 1, stream);
    count_wrong(at, 1, wrong, stream);
    MUST(cuStreamSynchronize, stream);
    unsigned before = wrong.host[0];
    MUST(cuMemUnmap, at, unit);
    given(at, unit, fresh);
    wrong.host[0] = 0;
    count_wrong(at, 2, wrong, stream);
    MUST(cuStreamSynchronize, stream);
    row(NULL, wrong.host[0] || before ? "no" : "yes", "%u words wrong before, %u after", before, wrong.host[0]);
}

static void dependent_launch(long same) {
    setup();
    kernels_must_run();
    int major = 0;
    MUST(cuDeviceGetAttribute, &major, 75 /* CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR */, 0);
    if (major < 9) cannot_ask("the device's compute capability is %d; dependent launches came with 9.0", major);
    NEED(cuLaunchKernelEx);
    enum { THREADS = 256 };
    CUdeviceptr first, second;
    addresses((int)same, &first, &second, granularity());
    CUfunction primary_kernel = dependent_kernel("primary"), secondary = dependent_kernel("secondary");
    CUstream stream = new_stream();
    struct words words = new_words(3);
    unsigned long long early = 0, plain = 0, with_volatile = 0, delay = 2000000;
    synchronize();
    for (unsigned round = 1; round <= ROUNDS; round++) {
        void *of_primary[] = {&first, &round, &delay}, *of_secondary[] = {&second, &round, &words.device};
        CUlaunchAttribute attribute;
        memset(&attribute, 0, sizeof attribute);
        attribute.id = 6;
        attribute.value.on = 1;
        const CUlaunchConfig config = {1, 1, 1, THREADS, 1, 1, 0, stream, &attribute, 1};
        launch(primary_kernel, 1, THREADS, stream, of_primary);
        MUST(cuLaunchKernelEx, &config, secondary, of_secondary, NULL);
        MUST(cuStreamSynchronize, stream);
        early += words.host[0];
        plain += words.host[1];
        with_volatile += words.host[2];
        memset((void *)words.host, 0, 3 * sizeof(unsigned));
    }
    const char *answer = early == 0 ? "did not overlap" : plain == 0 && with_volatile == 0 ? "yes" :
                         with_volatile == 0 ? "only with volatile loads" : "no";
    row(NULL, answer, "of %d words, %llu were read before the write; then %llu were old with plain loads, %llu with volatile ones",
        ROUNDS * THREADS, early, plain, with_volatile);
}

static void persistent_kernel(long same) {
    enum { THREADS = 256 };
    setup();
    kernels_must_run();
    CUdeviceptr first, second;
    addresses((int)same, &first, &second, granularity());
    CUstream reader = new_stream(), writer = new_stream();
    struct words words = new_words(8);
    /* The writer is compiled and loaded before: loading may wait for kernels that run. */
    write_words(first, 0, writer);
    synchronize();
    unsigned long long plain = 0, with_volatile = 0, acquiring = 0, late = 0;
    for (unsigned round = 1; round <= ROUNDS; round++) {
        unsigned long long most = (unsigned long long)MOST_MS * 1000000;
        memset((void *)words.host, 0, 8 * sizeof(unsigned));
        void *arguments[] = {&second, &round, &words.device, &most};
        launch(kernel("persist"), 1, THREADS, reader, arguments);
        double end = now() + 1;
        while (!words.host[0] && now() < end) {}
        if (!words.host[0]) cannot_ask("the kernel did not begin within a second");
        write_words(first, round, writer);
        MUST(cuStreamSynchronize, writer);
        __sync_synchronize();
        words.host[1] = 1;
        MUST(cuStreamSynchronize, reader);
        plain += words.host[2];
        with_volatile += words.host[3];
        acquiring += words.host[4];
        late += words.host[5];
        if (late) break;
    }
    const char *answer = late ? "the writer waits for it" : plain == 0 && with_volatile == 0 && acquiring == 0 ? "yes" :
                         with_volatile == 0 && acquiring == 0 ? "not with plain loads" :
                         acquiring == 0 ? "only with acquiring loads" : "no";
    row(NULL, answer, "of %d words, old: %llu with plain loads, %llu with volatile ones, %llu with acquiring ones",
        ROUNDS * THREADS, plain, with_volatile, acquiring);
}

/* ---- without kernels ---- */

static void many_addresses(long unused) {
    (void)unused;
    enum { MOST = 1024 };
    setup();
    const size_t unit = granularity();
    CUhandle handle = new_handle(unit);
    CUdeviceptr range = new_range(MOST * unit);
    CUresult code = 0;
    int count = 0;
    double end = now() + 5;
    while (count < MOST && now() < end) {
        code = p_cuMemMap(range + (size_t)count * unit, unit, 0, handle, 0);
        if (code) break;
        count++;
    }
    give_access(range, (size_t)count * unit);
    char answer[32];
    snprintf(answer, sizeof answer, "%d%s", count, count == MOST ? " or more" : "");
    row(NULL, answer, "the last cuMemMap gave %s; one cuMemSetAccess over all", name_of(code));
}

static void while_written(long unused) {
    (void)unused;
    enum { GATE_MS = 100, BYTES = 4096 };
    static unsigned char seen[BYTES];
    setup();
    const size_t unit = granularity();
    CUhandle handle = new_handle(unit);
    CUdeviceptr first = new_range(unit), second = new_range(unit);
    given(first, unit, handle);
    CUstream stream = new_stream();
    synchronize();
    struct gate gate;
    close_gate(&gate, stream);
    MUST(cuMemsetD8Async, first, 9, unit, stream);
    open_gate_after(&gate, GATE_MS);
    double start = now();
    CUresult mapped = p_cuMemMap(second, unit, 0, handle, 0);
    const CUaccess both = {{1, 0}, 3};
    CUresult accessed = mapped ? mapped : p_cuMemSetAccess(second, unit, &both, 1);
    double milliseconds = (now() - start) * 1e3;
    if (accessed) {
        row(NULL, "refused", "cuMemMap %s, cuMemSetAccess %s", name_of(mapped), name_of(accessed));
        return;
    }
    MUST(cuMemcpyDtoHAsync_v2, seen, second, BYTES, stream);
    MUST(cuStreamSynchronize, stream);
    int wrong = 0;
    for (int i = 0; i < BYTES; i++) wrong += seen[i] != 9;
    char answer[64];
    snprintf(answer, sizeof answer, "allowed, %s, %s", milliseconds > 0.8 * GATE_MS ? "waits" : "no wait",
             wrong ? "bytes are old" : "bytes are there");
    row(NULL, answer, "%.3f ms; the write could begin after %d ms; %d of %d bytes old behind it", milliseconds, GATE_MS,
        wrong, BYTES);
}

static void one_goes(long unused) {
    (void)unused;
    setup();
    const size_t unit = granularity();
    CUdeviceptr first, second;
    addresses(0, &first, &second, unit);
    CUstream stream = new_stream();
    unsigned char seen = 0;
    MUST(cuMemsetD8Async, first, 5, unit, stream);
    MUST(cuStreamSynchronize, stream);
    CUresult code = p_cuMemUnmap(first, unit);
    CUresult read = p_cuMemcpyDtoH_v2(&seen, second + unit / 2, 1);
    row(NULL, code == 0 && read == 0 && seen == 5 ? "yes" : "no", "cuMemUnmap %s; a read at the other address %s, wrote 5, read %u",
        name_of(code), name_of(read), seen);
}

static void costs(long unused) {
    (void)unused;
    enum { COUNT = 15 };
    setup();
    const size_t bytes = (size_t)32 << 20;
    CUdeviceptr first, second = new_range(bytes);
    CUhandle handle = new_handle(bytes);
    first = new_range(bytes);
    given(first, bytes, handle);
    double map[COUNT], access[COUNT], unmap[COUNT];
    for (int i = -1; i < COUNT; i++) {
        int slot = i < 0 ? 0 : i;
        double start = now();
        MUST(cuMemMap, second, bytes, 0, handle, 0);
        double mapped = now();
        give_access(second, bytes);
        double accessed = now();
        MUST(cuMemUnmap, second, bytes);
        map[slot] = (mapped - start) * 1e6;
        access[slot] = (accessed - mapped) * 1e6;
        unmap[slot] = (now() - accessed) * 1e6;
    }
    double mapped = median(map, COUNT), accessed = median(access, COUNT), unmapped = median(unmap, COUNT);
    char answer[32];
    snprintf(answer, sizeof answer, "%.1f us", mapped + accessed);
    row(NULL, answer, "median of %d: map %.1f us, access %.1f us, unmap %.1f us", COUNT, mapped, accessed, unmapped);
}

static void speed(long unused) {
    (void)unused;
    enum { COUNT = 9, COPIES = 4 };
    setup();
    const size_t bytes = (size_t)64 << 20;
    CUdeviceptr first, second, target = new_mapping(bytes);
    addresses(0, &first, &second, bytes);
    CUstream stream = new_stream();
    double times[2][COUNT];
    for (int i = -1; i < COUNT; i++) {
        for (int which = 0; which < 2; which++) {
            CUdeviceptr from = which ? second : first;
            double start = now();
            for (int copy = 0; copy < COPIES; copy++) MUST(cuMemcpyDtoDAsync_v2, target, from, bytes, stream);
            MUST(cuStreamSynchronize, stream);
            times[which][i < 0 ? 0 : i] = now() - start;
        }
    }
    double of_first = median(times[0], COUNT), of_second = median(times[1], COUNT);
    char answer[32];
    snprintf(answer, sizeof answer, "x%.2f", of_second / of_first);
    row(NULL, answer, "%d copies of 64 MiB: %.3f ms from the first address, %.3f ms from the alias", COPIES, of_first * 1e3,
        of_second * 1e3);
}

const struct question alias_questions[] = {
    {"the driver compiles PTX and runs kernels", runs, 0},
    {"a kernel reads what the one before it wrote through an alias", kernel_after_kernel, 0},
    {"a kernel behind an event reads what another stream's wrote through an alias", kernel_after_kernel, 1},
    {"a kernel of a graph reads what the one before it wrote through an alias", kernel_after_kernel, 2},
    {"a kernel reads the new memory of an address that was mapped anew", mapped_anew, 0},
    {"a dependent launch reads what its primary wrote at the same address", dependent_launch, 1},
    {"a dependent launch reads what its primary wrote through an alias", dependent_launch, 0},
    {"a persistent kernel reads what was written meanwhile at the same address", persistent_kernel, 1},
    {"a persistent kernel reads what was written meanwhile through an alias", persistent_kernel, 0},
    {"addresses of one handle", many_addresses, 0},
    {"a handle gets a second address while work on it is pending", while_written, 0},
    {"unmapping one of two addresses leaves the other", one_goes, 0},
    {"cost of an alias, 32 MiB", costs, 0},
    {"time of copies through an alias", speed, 0},
    {NULL, NULL, 0},
};
