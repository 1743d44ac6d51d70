/* A tool in NVTX's sense, compiled with NVIDIA's own headers: it writes what it receives to stderr, a line each. */
#define NVTX_NO_IMPL
#include <nvtx3/nvToolsExtMem.h>

#include <stdio.h>

static nvtxMemHeapHandle_t heap_register(nvtxDomainHandle_t domain, nvtxMemHeapDesc_t const *desc) {
    static char heaps[16];
    static int count;
    nvtxMemVirtualRangeDesc_t const *range = desc->typeSpecificDesc;
    if (domain || desc->extCompatID != NVTX_EXT_COMPATID_MEM || desc->structSize != sizeof *desc ||
        desc->usage != NVTX_MEM_HEAP_USAGE_TYPE_SUB_ALLOCATOR || desc->type != NVTX_MEM_TYPE_VIRTUAL_ADDRESS ||
        desc->typeSpecificDescSize != sizeof *range || desc->messageType != NVTX_MESSAGE_TYPE_ASCII) {
        fprintf(stderr, "tool: wrong heap\n");
    }
    fprintf(stderr, "tool: heap %d %p %zu %s\n", count + 1, range->ptr, range->size, desc->message.ascii);
    return (nvtxMemHeapHandle_t)&heaps[++count % 16];
}

static void heap_unregister(nvtxDomainHandle_t domain, nvtxMemHeapHandle_t heap) {
    (void)heap;
    fprintf(stderr, "tool: heap gone%s\n", domain ? ", wrong domain" : "");
}

static void regions_register(nvtxDomainHandle_t domain, nvtxMemRegionsRegisterBatch_t const *desc) {
    nvtxMemVirtualRangeDesc_t const *range = desc->regionDescElements;
    if (domain || desc->extCompatID != NVTX_EXT_COMPATID_MEM || desc->structSize != sizeof *desc || !desc->heap ||
        desc->regionType != NVTX_MEM_TYPE_VIRTUAL_ADDRESS || desc->regionCount != 1 ||
        desc->regionDescElementSize != sizeof *range || desc->regionHandleElementsOut) {
        fprintf(stderr, "tool: wrong region\n");
    }
    fprintf(stderr, "tool: region %p %zu\n", range->ptr, range->size);
}

static void regions_unregister(nvtxDomainHandle_t domain, nvtxMemRegionsUnregisterBatch_t const *desc) {
    if (domain || desc->extCompatID != NVTX_EXT_COMPATID_MEM || desc->structSize != sizeof *desc ||
        desc->refType != NVTX_MEM_REGION_REF_TYPE_POINTER || desc->refCount != 1 ||
        desc->refElementSize != sizeof(nvtxMemRegionRef_t)) {
        fprintf(stderr, "tool: wrong reference\n");
    }
    fprintf(stderr, "tool: gone %p\n", desc->refElements->pointer);
}

int InitializeInjectionNvtxExtension(nvtxExtModuleInfo_t *module);
int InitializeInjectionNvtxExtension(nvtxExtModuleInfo_t *module) {
    if (module->moduleId != NVTX_EXT_MODULEID_MEM || module->compatId != NVTX_EXT_COMPATID_MEM ||
        module->nvtxVer != NVTX_VERSION || module->structSize != sizeof *module || module->segmentsCount != 1 ||
        module->segments[0].slotCount < NVTX3EXT_CBID_nvtxMemCudaMarkInitialized) {
        fprintf(stderr, "tool: wrong module\n");
        return 0;
    }
    intptr_t *slots = module->segments[0].functionSlots;
    slots[NVTX3EXT_CBID_nvtxMemHeapRegister] = (intptr_t)heap_register;
    slots[NVTX3EXT_CBID_nvtxMemHeapUnregister] = (intptr_t)heap_unregister;
    slots[NVTX3EXT_CBID_nvtxMemRegionsRegister] = (intptr_t)regions_register;
    slots[NVTX3EXT_CBID_nvtxMemRegionsUnregister] = (intptr_t)regions_unregister;
    return 1;
}
