/* malloc, free and their like, for LD_PRELOAD, over one allocator of the library in this process's own memory. A program that
   allocates with them writes to each byte of its blocks, so two blocks that overlap change what it prints.

   The library's own requests, those of a forked child, and those before this is ready are glibc's. TRTALLOC_TEST_LIBRARY is the library,
   and TRTALLOC_TEST_OUTPUT the file to which each process adds how many blocks it got. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <trtalloc/trtalloc.h>

void *__libc_malloc(size_t size);
void *__libc_calloc(size_t count, size_t size);
void *__libc_realloc(void *memory, size_t size);
void *__libc_memalign(size_t alignment, size_t size);
void __libc_free(void *memory);

#define BYTES ((size_t)8 << 30)
#define GRANULE 512

static trtalloc_allocator *pool;
static char *base;
/* The bytes that the program requested, by the granule at which a block starts; 0 where none does. */
static size_t *sizes;
static size_t blocks;
static void *(*allocate)(trtalloc_allocator *, uint64_t, uint64_t, uint32_t);
static bool (*deallocate)(trtalloc_allocator *, void *);

/* The thread is in the library, whose own memory comes from elsewhere. */
static __thread int inside __attribute__((tls_model("initial-exec")));

static bool is_ours(const void *memory) {
  return base != NULL && (const char *)memory >= base && (const char *)memory < base + BYTES;
}

static size_t *size_of(const void *memory) {
  return &sizes[(size_t)((const char *)memory - base) / GRANULE];
}

static void fail(const char *what) {
  if (write(2, what, strlen(what)) < 0) {
    _exit(99);
  }
  abort();
}

/* NULL where the library refuses, as it does while the process exits. */
static void *from_pool(size_t alignment, size_t size) {
  if (pool == NULL || inside) {
    return NULL;
  }
  const int before = errno;
  inside = 1;
  char *const memory = allocate(pool, size ? size : 1, alignment, 0);
  inside = 0;
  errno = before;
  if (memory == NULL) {
    return NULL;
  }
  if (!is_ours(memory) || memory + size > base + BYTES) {
    fail("the block lies elsewhere\n");
  }
  for (const char *at = memory; at < memory + (size ? size : 1); at += GRANULE) {
    if (*size_of(at) != 0) {
      fail("the block overlaps another one\n");
    }
  }
  *size_of(memory) = size ? size : 1;
  memset(memory, 0xa5, size);
  __atomic_fetch_add(&blocks, 1, __ATOMIC_RELAXED);
  return memory;
}

void *malloc(size_t size) {
  void *const memory = from_pool(0, size);
  return memory ? memory : __libc_malloc(size);
}

void free(void *memory) {
  if (!is_ours(memory)) {
    __libc_free(memory);
    return;
  }
  /* A forked child leaves its parent's blocks. */
  if (pool == NULL) {
    return;
  }
  const size_t size = *size_of(memory);
  if (size == 0) {
    fail("no block starts there\n");
  }
  memset(memory, 0x5a, size);
  *size_of(memory) = 0;
  const int before = errno;
  const int nested = inside;
  inside = 1;
  if (!deallocate(pool, memory)) {
    fail("the block was not freed\n");
  }
  inside = nested;
  errno = before;
}

void *calloc(size_t count, size_t size) {
  size_t bytes;
  if (__builtin_mul_overflow(count, size, &bytes)) {
    errno = ENOMEM;
    return NULL;
  }
  void *const memory = from_pool(0, bytes);
  return memory ? memset(memory, 0, bytes) : __libc_calloc(count, size);
}

void *realloc(void *memory, size_t size) {
  if (!is_ours(memory)) {
    return memory ? __libc_realloc(memory, size) : malloc(size);
  }
  if (size == 0) {
    free(memory);
    return NULL;
  }
  void *const other = malloc(size);
  if (other != NULL) {
    const size_t had = *size_of(memory);
    memcpy(other, memory, had < size ? had : size);
    free(memory);
  }
  return other;
}

void *memalign(size_t alignment, size_t size) {
  void *const memory = alignment <= (1 << 20) ? from_pool(alignment, size) : NULL;
  return memory ? memory : __libc_memalign(alignment, size);
}

void *aligned_alloc(size_t alignment, size_t size) {
  return memalign(alignment, size);
}

int posix_memalign(void **out, size_t alignment, size_t size) {
  void *const memory = memalign(alignment, size);
  *out = memory ? memory : *out;
  return memory ? 0 : ENOMEM;
}

size_t malloc_usable_size(void *memory) {
  if (is_ours(memory)) {
    return *size_of(memory);
  }
  static size_t (*next)(void *);
  if (next == NULL) {
    next = (size_t (*)(void *))dlsym(RTLD_NEXT, "malloc_usable_size");
  }
  return next(memory);
}

static void in_child(void) {
  pool = NULL;
}

static void *symbol(void *library, const char *name) {
  void *const found = dlsym(library, name);
  if (found == NULL) {
    fail("a function is missing\n");
  }
  return found;
}

__attribute__((constructor)) static void begin(void) {
  const char *const path = getenv("TRTALLOC_TEST_LIBRARY");
  if (path == NULL) {
    return;
  }
  inside = 1;
  void *const library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (library == NULL) {
    fail("the library does not load\n");
  }
  trtalloc_status (*create)(void *, uint64_t, const char *, trtalloc_allocator **);
  *(void **)&create = symbol(library, "trtalloc_create_from");
  *(void **)&allocate = symbol(library, "trtalloc_allocate");
  *(void **)&deallocate = symbol(library, "trtalloc_deallocate");
  const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, access = PROT_READ | PROT_WRITE;
  char *const memory = mmap(NULL, BYTES, access, flags, -1, 0);
  sizes = mmap(NULL, BYTES / GRANULE * sizeof *sizes, access, flags, -1, 0);
  if (memory == MAP_FAILED || sizes == MAP_FAILED) {
    fail("no memory for the blocks\n");
  }
  trtalloc_allocator *made = NULL;
  if (create(memory, BYTES, "driver=none", &made) != TRTALLOC_STATUS_OK) {
    fail("no allocator\n");
  }
  pthread_atfork(NULL, NULL, in_child);
  base = memory;
  pool = made;
  inside = 0;
}

__attribute__((destructor)) static void end(void) {
  const char *const path = getenv("TRTALLOC_TEST_OUTPUT");
  if (pool == NULL || path == NULL) {
    return;
  }
  char line[64];
  const int length = snprintf(line, sizeof line, "%zu\n", __atomic_load_n(&blocks, __ATOMIC_RELAXED));
  const int file = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
  if (file < 0 || write(file, line, (size_t)length) != length) {
    fail("the count was not written\n");
  }
  close(file);
}
