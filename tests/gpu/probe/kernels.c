/* Kernels for the questions that memsets cannot ask, as PTX: the driver compiles them. Each of them ends by itself: what
 * waits for another party does so for a limited time. */
#include "probe.h"

#include <stdio.h>
#include <string.h>

/* Every device of compute capability 7.5 and later, which is all that CUDA 13 supports. */
static const char PTX[] =
    ".version 7.0\n"
    ".target sm_75\n"
    ".address_size 64\n"
    /* Writes `value` to `count` words. */
    ".visible .entry write_words(.param .u64 data, .param .u32 value, .param .u32 count)\n"
    "{\n"
    "  .reg .pred %p; .reg .b32 %v, %n, %i, %s, %b, %t; .reg .b64 %d, %o, %a;\n"
    "  ld.param.u64 %d, [data]; ld.param.u32 %v, [value]; ld.param.u32 %n, [count];\n"
    "  cvta.to.global.u64 %d, %d;\n"
    "  mov.u32 %b, %ctaid.x; mov.u32 %s, %ntid.x; mov.u32 %t, %tid.x; mad.lo.u32 %i, %b, %s, %t;\n"
    "  mov.u32 %b, %nctaid.x; mul.lo.u32 %s, %s, %b;\n"
    "NEXT: setp.ge.u32 %p, %i, %n; @%p bra DONE;\n"
    "  mul.wide.u32 %o, %i, 4; add.u64 %a, %d, %o; st.global.u32 [%a], %v;\n"
    "  add.u32 %i, %i, %s; bra NEXT;\n"
    "DONE: ret;\n"
    "}\n"
    /* Adds to `wrong` how many of `count` words are not `value`. */
    ".visible .entry count_wrong(.param .u64 data, .param .u32 value, .param .u32 count, .param .u64 wrong)\n"
    "{\n"
    "  .reg .pred %p; .reg .b32 %v, %n, %i, %s, %b, %t, %x; .reg .b64 %d, %o, %a, %w;\n"
    "  ld.param.u64 %d, [data]; ld.param.u32 %v, [value]; ld.param.u32 %n, [count]; ld.param.u64 %w, [wrong];\n"
    "  cvta.to.global.u64 %d, %d; cvta.to.global.u64 %w, %w;\n"
    "  mov.u32 %b, %ctaid.x; mov.u32 %s, %ntid.x; mov.u32 %t, %tid.x; mad.lo.u32 %i, %b, %s, %t;\n"
    "  mov.u32 %b, %nctaid.x; mul.lo.u32 %s, %s, %b;\n"
    "NEXT: setp.ge.u32 %p, %i, %n; @%p bra DONE;\n"
    "  mul.wide.u32 %o, %i, 4; add.u64 %a, %d, %o; ld.global.u32 %x, [%a];\n"
    "  setp.ne.u32 %p, %x, %v; @%p red.global.add.u32 [%w], 1;\n"
    "  add.u32 %i, %i, %s; bra NEXT;\n"
    "DONE: ret;\n"
    "}\n"
    /* Sets word 0, and runs until word 1 is not 0 or `most` nanoseconds have passed. */
    ".visible .entry hold(.param .u64 words, .param .u64 most)\n"
    "{\n"
    "  .reg .pred %p; .reg .b32 %x; .reg .b64 %w, %m, %b, %t;\n"
    "  ld.param.u64 %w, [words]; ld.param.u64 %m, [most];\n"
    "  cvta.to.global.u64 %w, %w;\n"
    "  mov.u64 %b, %globaltimer; add.u64 %m, %m, %b;\n"
    "  mov.u32 %x, 1; st.release.sys.global.u32 [%w], %x;\n"
    "WAIT: ld.acquire.sys.global.u32 %x, [%w+4]; setp.ne.u32 %p, %x, 0; @%p bra DONE;\n"
    "  mov.u64 %t, %globaltimer; setp.lt.u64 %p, %t, %m; @%p bra WAIT;\n"
    "DONE: ret;\n"
    "}\n"
    /* Multiplies for `turns` turns: time that passes only while the kernel really runs. */
    ".visible .entry work(.param .u64 out, .param .u32 turns)\n"
    "{\n"
    "  .reg .pred %p; .reg .b32 %i, %n, %x; .reg .b64 %o;\n"
    "  ld.param.u64 %o, [out]; ld.param.u32 %n, [turns];\n"
    "  cvta.to.global.u64 %o, %o; mov.u32 %i, 0; mov.u32 %x, %tid.x;\n"
    "NEXT: mad.lo.u32 %x, %x, 1664525, %i; add.u32 %i, %i, 1; setp.lt.u32 %p, %i, %n; @%p bra NEXT;\n"
    "  setp.eq.u32 %p, %x, 123456789; @%p st.global.u32 [%o], %x;\n"
    "  ret;\n"
    "}\n"
    /* A persistent kernel: each thread reads its word, word 0 is set, and once word 1 is set or `most` nanoseconds have
     * passed, each reads its word again. Words 2, 3 and 4 count those that are not `value`: for a plain load, a volatile
     * one, and one that acquires. Word 5 counts threads that word 1 was not set for. */
    ".visible .entry persist(.param .u64 data, .param .u32 value, .param .u64 words, .param .u64 most)\n"
    "{\n"
    "  .reg .pred %p, %q; .reg .b32 %x, %v, %t, %y; .reg .b64 %d, %w, %m, %b, %c, %o;\n"
    "  ld.param.u64 %d, [data]; ld.param.u32 %v, [value]; ld.param.u64 %w, [words]; ld.param.u64 %m, [most];\n"
    "  cvta.to.global.u64 %d, %d; cvta.to.global.u64 %w, %w;\n"
    "  mov.u32 %t, %tid.x; mul.wide.u32 %o, %t, 4; add.u64 %d, %d, %o;\n"
    "  mov.u64 %b, %globaltimer; add.u64 %m, %m, %b;\n"
    /* What a plain load has read stays in this processor's first cache. */
    "  ld.global.ca.u32 %y, [%d]; setp.eq.u32 %p, %y, %v; @%p red.global.add.u32 [%w+24], 1;\n"
    "  bar.sync 0;\n"
    "  mov.u32 %x, 1; setp.eq.u32 %p, %t, 0; @%p st.release.sys.global.u32 [%w], %x;\n"
    "WAIT: ld.acquire.sys.global.u32 %x, [%w+4]; setp.ne.u32 %p, %x, 0; @%p bra READ;\n"
    "  mov.u64 %c, %globaltimer; setp.lt.u64 %p, %c, %m; @%p bra WAIT;\n"
    "  red.global.add.u32 [%w+20], 1;\n"
    "READ: ld.global.ca.u32 %x, [%d]; setp.ne.u32 %q, %x, %v; @%q red.global.add.u32 [%w+8], 1;\n"
    "  ld.volatile.global.u32 %x, [%d]; setp.ne.u32 %q, %x, %v; @%q red.global.add.u32 [%w+12], 1;\n"
    "  ld.acquire.sys.global.u32 %x, [%d]; setp.ne.u32 %q, %x, %v; @%q red.global.add.u32 [%w+16], 1;\n"
    "  ret;\n"
    "}\n";

/* Programmatic dependent launch came with compute capability 9.0. */
static const char DEPENDENT_PTX[] =
    ".version 7.8\n"
    ".target sm_90\n"
    ".address_size 64\n"
    /* Lets the next kernel begin, waits so many nanoseconds, and writes `value` to each thread's word. */
    ".visible .entry primary(.param .u64 data, .param .u32 value, .param .u64 delay)\n"
    "{\n"
    "  .reg .pred %p; .reg .b32 %v, %t; .reg .b64 %d, %o, %m, %b;\n"
    "  ld.param.u64 %d, [data]; ld.param.u32 %v, [value]; ld.param.u64 %m, [delay];\n"
    "  cvta.to.global.u64 %d, %d;\n"
    "  griddepcontrol.launch_dependents;\n"
    "  mov.u64 %b, %globaltimer; add.u64 %m, %m, %b;\n"
    "WAIT: mov.u64 %b, %globaltimer; setp.lt.u64 %p, %b, %m; @%p bra WAIT;\n"
    "  mov.u32 %t, %tid.x; mul.wide.u32 %o, %t, 4; add.u64 %d, %d, %o; st.global.u32 [%d], %v;\n"
    "  ret;\n"
    "}\n"
    /* Reads each thread's word, waits for the kernel before, and reads it again. Word 0 counts the first reads that are
     * not `value`: those that came before the write. Words 1 and 2 count the later ones, plain and volatile. */
    ".visible .entry secondary(.param .u64 data, .param .u32 value, .param .u64 words)\n"
    "{\n"
    "  .reg .pred %p; .reg .b32 %v, %t, %x; .reg .b64 %d, %o, %w;\n"
    "  ld.param.u64 %d, [data]; ld.param.u32 %v, [value]; ld.param.u64 %w, [words];\n"
    "  cvta.to.global.u64 %d, %d; cvta.to.global.u64 %w, %w;\n"
    "  mov.u32 %t, %tid.x; mul.wide.u32 %o, %t, 4; add.u64 %d, %d, %o;\n"
    "  ld.global.ca.u32 %x, [%d]; setp.ne.u32 %p, %x, %v; @%p red.global.add.u32 [%w], 1;\n"
    "  griddepcontrol.wait;\n"
    "  ld.global.ca.u32 %x, [%d]; setp.ne.u32 %p, %x, %v; @%p red.global.add.u32 [%w+4], 1;\n"
    "  ld.volatile.global.u32 %x, [%d]; setp.ne.u32 %p, %x, %v; @%p red.global.add.u32 [%w+8], 1;\n"
    "  ret;\n"
    "}\n";

const char *const ptx_modules[] = {PTX, DEPENDENT_PTX, NULL};

static CUfunction function_of(const char *ptx, CUmodule *module, const char *name) {
    CUfunction function;
    if (!*module) MUST(cuModuleLoadData, module, ptx);
    MUST(cuModuleGetFunction, &function, *module, name);
    return function;
}

CUfunction kernel(const char *name) {
    static CUmodule module;
    return function_of(PTX, &module, name);
}

CUfunction dependent_kernel(const char *name) {
    static CUmodule module;
    return function_of(DEPENDENT_PTX, &module, name);
}

void launch(CUfunction function, unsigned blocks, unsigned threads, CUstream stream, void **arguments) {
    MUST(cuLaunchKernel, function, blocks, 1, 1, threads, 1, 1, 0, stream, arguments, NULL);
}

struct words new_words(size_t count) {
    struct words words;
    void *host;
    MUST(cuMemHostAlloc, &host, count * sizeof(unsigned), 2 /* CU_MEMHOSTALLOC_DEVICEMAP */);
    MUST(cuMemHostGetDevicePointer_v2, &words.device, host, 0);
    memset(host, 0, count * sizeof(unsigned));
    words.host = host;
    return words;
}

void hold_stream(struct words words, CUstream stream, int most_milliseconds) {
    unsigned long long most = (unsigned long long)most_milliseconds * 1000000;
    void *arguments[] = {&words.device, &most};
    launch(kernel("hold"), 1, 1, stream, arguments);
}

int kernels_run(const char **why) {
    static char text[256];
    static CUmodule module;
    CUfunction write;
    *why = text;
    if (!p_cuModuleLoadData || !p_cuModuleGetFunction || !p_cuLaunchKernel) {
        snprintf(text, sizeof text, "this driver has no cuModuleLoadData, cuModuleGetFunction or cuLaunchKernel");
        return 0;
    }
    CUresult code = p_cuModuleLoadData(&module, PTX);
    if (code) {
        snprintf(text, sizeof text, "cuModuleLoadData gave %s", name_of(code));
        return 0;
    }
    code = p_cuModuleGetFunction(&write, module, "write_words");
    if (code) {
        snprintf(text, sizeof text, "cuModuleGetFunction gave %s", name_of(code));
        return 0;
    }
    struct words words = new_words(1);
    unsigned value = 0xC0FFEE, count = 1;
    void *arguments[] = {&words.device, &value, &count};
    CUstream stream = new_stream();
    code = p_cuLaunchKernel(write, 1, 1, 1, 32, 1, 1, 0, stream, arguments, NULL);
    if (!code) code = p_cuStreamSynchronize(stream);
    if (code) {
        snprintf(text, sizeof text, "a launch of a kernel gave %s", name_of(code));
        return 0;
    }
    if (words.host[0] != value) {
        snprintf(text, sizeof text, "the driver accepts a kernel and computes nothing");
        return 0;
    }
    snprintf(text, sizeof text, "compiled from PTX, and it wrote its word");
    return 1;
}

void kernels_must_run(void) {
    const char *why;
    if (!kernels_run(&why)) cannot_ask("%s", why);
}
