/* What virtual memory allows, and what it waits for. */
#include "probe.h"

#include <stdio.h>
#include <string.h>

enum { GATE_MS = 150, HANDLES = 4 };

static void verdict(CUresult code) { row(NULL, code ? "refused" : "allowed", "code %u", code); }

static void unmap_several(long unused) {
    (void)unused;
    setup();
    const size_t unit = granularity();
    CUdeviceptr range = new_range(HANDLES * unit);
    for (int i = 0; i < HANDLES; i++) MUST(cuMemMap, range + (size_t)i * unit, unit, 0, new_handle(unit), 0);
    give_access(range, HANDLES * unit);
    CUresult code = p_cuMemUnmap(range, HANDLES * unit);
    CUresult again = p_cuMemMap(range, unit, 0, new_handle(unit), 0);
    row(NULL, code ? "refused" : "allowed", "code %u over %d handles; mapping there again gave %u", code, HANDLES,
        again);
}

static void unmap_with_hole(long unused) {
    (void)unused;
    setup();
    const size_t unit = granularity();
    CUdeviceptr range = new_range(3 * unit);
    MUST(cuMemMap, range, unit, 0, new_handle(unit), 0);
    MUST(cuMemMap, range + 2 * unit, unit, 0, new_handle(unit), 0);
    verdict(p_cuMemUnmap(range, 3 * unit));
}

static void unmap_part(long unused) {
    (void)unused;
    setup();
    const size_t unit = granularity();
    CUdeviceptr range = new_range(2 * unit);
    MUST(cuMemMap, range, 2 * unit, 0, new_handle(2 * unit), 0);
    verdict(p_cuMemUnmap(range, unit));
}

static void map_offset(long unused) {
    (void)unused;
    setup();
    const size_t unit = granularity();
    CUdeviceptr range = new_range(unit);
    CUhandle handle = new_handle(2 * unit);
    NEED(cuMemMap);
    verdict(p_cuMemMap(range, unit, unit, handle, 0));
}

static void map_prefix(long unused) {
    (void)unused;
    setup();
    const size_t unit = granularity();
    CUdeviceptr range = new_range(unit);
    CUhandle handle = new_handle(2 * unit);
    NEED(cuMemMap);
    verdict(p_cuMemMap(range, unit, 0, handle, 0));
}

static void access_part(long unused) {
    (void)unused;
    setup();
    const size_t unit = granularity();
    const CUaccess both = {{1, 0}, 3};
    CUdeviceptr range = new_range(2 * unit);
    MUST(cuMemMap, range, 2 * unit, 0, new_handle(2 * unit), 0);
    verdict(p_cuMemSetAccess(range, unit, &both, 1));
}

static void access_across_hole(long unused) {
    (void)unused;
    setup();
    const size_t unit = granularity();
    const CUaccess both = {{1, 0}, 3};
    CUdeviceptr range = new_range(3 * unit);
    MUST(cuMemMap, range, unit, 0, new_handle(unit), 0);
    MUST(cuMemMap, range + 2 * unit, unit, 0, new_handle(unit), 0);
    verdict(p_cuMemSetAccess(range, 3 * unit, &both, 1));
}

/* Work on the very memory is pending when it goes: 0 cuMemUnmap, 1 cuMemFree, 2 cuMemRelease with the mapping left. */
static void goes_while_used(long how) {
    setup();
    const size_t unit = granularity();
    CUdeviceptr at;
    CUhandle handle = 0;
    if (how == 1) {
        MUST(cuMemAlloc_v2, &at, unit);
    } else {
        at = new_range(unit);
        handle = new_handle(unit);
        MUST(cuMemMap, at, unit, 0, handle, 0);
        give_access(at, unit);
    }
    CUstream stream = new_stream();
    synchronize();
    struct gate gate;
    close_gate(&gate, stream);
    MUST(cuMemsetD8Async, at, 1, unit, stream);
    open_gate_after(&gate, GATE_MS);
    double start = now();
    CUresult code = how == 0 ? p_cuMemUnmap(at, unit) : how == 1 ? p_cuMemFree_v2(at) : p_cuMemRelease(handle);
    double milliseconds = (now() - start) * 1e3;
    CUresult after = p_cuStreamSynchronize(stream);
    const char *waits = milliseconds > 0.8 * GATE_MS ? "waits" : "no wait";
    char answer[64];
    snprintf(answer, sizeof answer, "%s%s, work %s", code ? "refused, " : "", waits, after ? "faults" : "completes");
    row(NULL, answer, "code %u after %.3f ms; the work could begin after %d ms; its stream then says %u", code,
        milliseconds, GATE_MS, after);
}

/* One handle at two addresses. 0: written and read with a synchronization between; 1: in order on one stream. */
static void alias(long on_one_stream) {
    enum { BYTES = 4096 };
    static unsigned char seen[BYTES];
    setup();
    const size_t unit = granularity();
    CUhandle handle = new_handle(unit);
    CUdeviceptr first = new_range(unit), second = new_range(unit);
    MUST(cuMemMap, first, unit, 0, handle, 0);
    MUST(cuMemMap, second, unit, 0, handle, 0);
    give_access(first, unit);
    give_access(second, unit);
    CUstream stream = new_stream();
    int wrong = 0, rounds = 0;
    for (int value = 1; value <= 32; value++, rounds++) {
        CUdeviceptr written = value % 2 ? first : second, read = value % 2 ? second : first;
        MUST(cuMemsetD8Async, written, (unsigned char)value, unit, stream);
        if (!on_one_stream) MUST(cuStreamSynchronize, stream);
        MUST(cuMemcpyDtoHAsync_v2, seen, read, BYTES, stream);
        MUST(cuStreamSynchronize, stream);
        for (int i = 0; i < BYTES; i++) wrong += seen[i] != (unsigned char)value;
    }
    row(NULL, wrong ? "no" : "yes", "%d wrong bytes in %d rounds of write here, read there", wrong, rounds);
}

/* Do contents survive an unmap and a map elsewhere? */
static void move_contents(long unused) {
    (void)unused;
    setup();
    const size_t unit = granularity();
    CUhandle handle = new_handle(unit);
    CUdeviceptr range = new_range(2 * unit);
    unsigned char seen = 0;
    MUST(cuMemMap, range, unit, 0, handle, 0);
    give_access(range, unit);
    CUstream stream = new_stream();
    MUST(cuMemsetD8Async, range, 77, unit, stream);
    MUST(cuStreamSynchronize, stream);
    MUST(cuMemUnmap, range, unit);
    MUST(cuMemMap, range + unit, unit, 0, handle, 0);
    give_access(range + unit, unit);
    MUST(cuMemcpyDtoH_v2, &seen, range + unit + unit / 2, 1);
    row(NULL, seen == 77 ? "yes" : "no", "wrote 77, read %u at the new address", seen);
}

/* Is the memory given back only once the last mapping has gone? */
static void release_while_mapped(long unused) {
    (void)unused;
    setup();
    const size_t bytes = (size_t)64 << 20;
    size_t before, mapped, after, total;
    CUdeviceptr range = new_range(bytes);
    MUST(cuMemGetInfo_v2, &before, &total);
    CUhandle handle = new_handle(bytes);
    MUST(cuMemMap, range, bytes, 0, handle, 0);
    MUST(cuMemRelease, handle);
    MUST(cuMemGetInfo_v2, &mapped, &total);
    CUresult code = p_cuMemUnmap(range, bytes);
    MUST(cuMemGetInfo_v2, &after, &total);
    long kept = (long)(before - mapped) >> 20, left = (long)(before - after) >> 20;
    row(NULL, kept >= 64 && left < 64 ? "yes" : "no",
        "%ld MiB taken after cuMemRelease with the mapping left, %ld MiB after cuMemUnmap (code %u)", kept, left, code);
}

const struct question memory_questions[] = {
    {"one cuMemUnmap over several handles", unmap_several, 0},
    {"one cuMemUnmap over two mappings and the hole between", unmap_with_hole, 0},
    {"cuMemUnmap of part of a mapping", unmap_part, 0},
    {"cuMemMap at an offset in the handle", map_offset, 0},
    {"cuMemMap of a handle's first half", map_prefix, 0},
    {"cuMemSetAccess on part of a mapping", access_part, 0},
    {"one cuMemSetAccess over two mappings and the hole between", access_across_hole, 0},
    {"cuMemUnmap waits for work on that memory", goes_while_used, 0},
    {"cuMemFree waits for work on that memory", goes_while_used, 1},
    {"cuMemRelease of mapped memory waits for work on it", goes_while_used, 2},
    {"a write at one address is read at the other, synchronized between", alias, 0},
    {"a write at one address is read at the other, one stream, no synchronization", alias, 1},
    {"a handle keeps its bytes from one mapping to the next", move_contents, 0},
    {"cuMemRelease keeps the memory while it is mapped", release_while_mapped, 0},
    {NULL, NULL, 0},
};
