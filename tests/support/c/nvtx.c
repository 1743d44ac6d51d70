/* What a tool should receive, on stderr in the words of nvtx_tool.c. */
#include "check.h"

#include <stdio.h>
#include <trtalloc/trtalloc.h>

static void life(const char *options) {
    trtalloc_allocator *allocator = NULL;
    CHECK(trtalloc_create(options, &allocator) == TRTALLOC_STATUS_OK);
    void *block = trtalloc_allocate(allocator, 1000, 0, 0);
    CHECK(block);
    fprintf(stderr, "expected: region %p 1000\n", block);
    void *other = trtalloc_allocate_async(allocator, 3000, 0, 0, NULL);
    CHECK(other);
    fprintf(stderr, "expected: region %p 3000\n", other);
    fprintf(stderr, "expected: gone %p\n", block);
    CHECK(trtalloc_deallocate(allocator, block));
    CHECK(!trtalloc_deallocate(allocator, block));
    fprintf(stderr, "expected: gone %p\n", other);
    CHECK(trtalloc_deallocate_async(allocator, other, NULL));
    other = trtalloc_allocate_async(allocator, 2900, 0, 0, NULL);
    fprintf(stderr, "expected: region %p 2900\n", other);
    fprintf(stderr, "expected: gone %p\n", other);
    CHECK(trtalloc_deallocate_async(allocator, other, NULL));
    trtalloc_destroy(allocator);
}

int main(void) {
    life("driver=sim");
    life("driver=sim,backing=malloc");
    return 0;
}
