/* A program that begins to record, loads an interpreter later, and runs it so many times: embedded LIBRARY
   LIBPYTHON SNAPSHOT TIMES */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <trtalloc/trtalloc.h>

#define CHECK(condition)                                                       \
  do {                                                                         \
    if (!(condition)) {                                                        \
      fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition);          \
      exit(1);                                                                 \
    }                                                                          \
  } while (0)

static const char *const script =
    "import ctypes\n"
    "library = ctypes.CDLL('%s')\n"
    "library.trtalloc_allocate.restype = ctypes.c_void_p\n"
    "def embedded_%d():\n"
    "    return library.trtalloc_allocate(ctypes.c_void_p(%p), ctypes.c_uint64(%d), ctypes.c_uint64(0), 0)\n"
    "assert embedded_%d()\n";

int main(int count, char **arguments) {
  trtalloc_status (*create)(const char *, trtalloc_allocator **);
  trtalloc_status (*snapshot)(trtalloc_allocator *, const char *);
  void (*initialize)(int), (*finalize)(void);
  int (*run)(const char *, void *), life;
  trtalloc_allocator *allocator;
  void *library, *python;
  CHECK(count == 5);
  CHECK(library = dlopen(arguments[1], RTLD_NOW | RTLD_LOCAL));
  *(void **)&create = dlsym(library, "trtalloc_create");
  *(void **)&snapshot = dlsym(library, "trtalloc_snapshot");
  CHECK(create && snapshot);
  CHECK(create("driver=sim,history=all,stacks=python", &allocator) == 0);
  CHECK(python = dlopen(arguments[2], RTLD_NOW | RTLD_GLOBAL));
  *(void **)&initialize = dlsym(python, "Py_InitializeEx");
  *(void **)&finalize = dlsym(python, "Py_Finalize");
  *(void **)&run = dlsym(python, "PyRun_SimpleStringFlags");
  CHECK(initialize && finalize && run);
  for (life = 1; life <= atoi(arguments[4]); life++) {
    char text[1024];
    snprintf(text, sizeof text, script, arguments[1], life, (void *)allocator, life, life);
    initialize(0);
    CHECK(run(text, NULL) == 0);
    finalize();
  }
  CHECK(snapshot(allocator, arguments[3]) == 0);
  return 0;
}
