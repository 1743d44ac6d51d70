/* A program that opens the library by path, allocates, and ends: ending WAY LIBRARY. What is to be written at its end is in
   the environment. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <trtalloc/trtalloc.h>
#include <unistd.h>

/* Without exit, whose work is what is looked at. */
#define CHECK(condition)                                                       \
  do {                                                                         \
    if (!(condition)) {                                                        \
      fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition);          \
      _exit(1);                                                                \
    }                                                                          \
  } while (0)

static trtalloc_allocator *(*own)(void);
static trtalloc_status (*create)(const char *, trtalloc_allocator **);
static void (*destroy)(trtalloc_allocator *);
static void *(*get)(trtalloc_allocator *, uint64_t, uint64_t, uint32_t);
static bool (*give)(trtalloc_allocator *, void *);
static trtalloc_status (*snapshot)(trtalloc_allocator *, const char *);

static void *open_library(const char *path) {
  void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  CHECK(library);
  *(void **)&own = dlsym(library, "trtalloc_default");
  *(void **)&create = dlsym(library, "trtalloc_create");
  *(void **)&destroy = dlsym(library, "trtalloc_destroy");
  *(void **)&get = dlsym(library, "trtalloc_allocate");
  *(void **)&give = dlsym(library, "trtalloc_deallocate");
  *(void **)&snapshot = dlsym(library, "trtalloc_snapshot");
  CHECK(own && create && destroy && get && give && snapshot);
  return library;
}

static void handler(int signal) {
  (void)signal;
  exit(3);
}

static volatile int busy;

static void *work(void *unused) {
  (void)unused;
  for (unsigned round = 0;; round++) {
    void *block = get(own(), 1000 * (round % 300 + 1), 0, 0);
    /* NULL once the process is ending. */
    if (block) give(own(), block);
    if (round == 2000) busy = 1;
  }
  return NULL;
}

int main(int count, char **words) {
  CHECK(count == 3);
  const char *way = words[1];
  void *library = open_library(words[2]);
  signal(SIGTERM, handler);
  if (!strcmp(way, "idle")) return 0;
  for (int at = 1; at <= 5; at++) CHECK(get(own(), (uint64_t)at << 20, 0, 0));
  CHECK(give(own(), get(own(), 777777, 0, 0)));
  if (!strcmp(way, "sigterm")) raise(SIGTERM);
  if (!strcmp(way, "killed")) raise(SIGKILL);
  if (!strcmp(way, "_exit")) _exit(0);
  if (!strcmp(way, "dlclose")) CHECK(dlclose(library) == 0);
  if (!strcmp(way, "silent")) close(STDERR_FILENO);
  if (!strcmp(way, "threads")) {
    pthread_t threads[3];
    for (int at = 0; at < 3; at++) CHECK(pthread_create(&threads[at], NULL, work, NULL) == 0);
    while (!busy) usleep(1000);
    kill(getpid(), SIGTERM);
  }
  if (!strcmp(way, "fork")) {
    pid_t child = fork();
    if (child == 0) exit(0);
    int status = 1;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
  }
  if (!strcmp(way, "several")) {
    char options[4096];
    trtalloc_allocator *others[2];
    for (int at = 0; at < 2; at++) {
      snprintf(options, sizeof options, "driver=sim,history=all,snapshot_at_exit=%s", getenv("TRTALLOC_SNAPSHOT_AT_EXIT"));
      CHECK(create(options, &others[at]) == TRTALLOC_STATUS_OK);
      CHECK(get(others[at], 12345678, 0, 0));
    }
    /* What is destroyed writes its file then, also while a block of it is in use. */
    CHECK(access(getenv("TRTALLOC_SNAPSHOT_AT_EXIT"), F_OK) != 0);
    destroy(others[1]);
    CHECK(access(getenv("TRTALLOC_SNAPSHOT_AT_EXIT"), F_OK) == 0);
  }
  if (!strcmp(way, "full")) {
    struct rlimit limit = {8192, 8192};
    CHECK(setrlimit(RLIMIT_FSIZE, &limit) == 0);
    signal(SIGXFSZ, SIG_IGN);
    for (int at = 0; at < 1000; at++) CHECK(give(own(), get(own(), 5000, 0, 0)));
    CHECK(snapshot(own(), getenv("SNAPSHOT_HERE")) == TRTALLOC_STATUS_IO);
  }
  return 0;
}
