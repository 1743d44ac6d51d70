/* A server for tests/programs/control: two models and a cache. It prints "ready", and then does what each line on stdin says. */
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#include <trtalloc/trtalloc.h>

enum { MIB = 1 << 20, BLOCKS = 8 };

void *bert_request(void);

static void check(int holds, const char *what) {
  if (!holds) {
    fprintf(stderr, "server: %s: %s\n", what, trtalloc_last_error());
    exit(1);
  }
}

static void *allocate(const char *tag, uint64_t size) {
  void *block = NULL;
  trtalloc_set_tag(tag);
  block = trtalloc_allocate(trtalloc_default(), size, 0, 0);
  trtalloc_set_tag(NULL);
  return block;
}

/* A filter that allows every system call. */
static void filter(void) {
  struct sock_filter all[] = {BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
  struct sock_fprog program = {1, all};
  check(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0, "no new rights");
  check(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0, "a filter");
}

static int64_t now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (int64_t)time.tv_sec * 1000000000 + time.tv_nsec;
}

/* The longest of the pairs in so many milliseconds, in microseconds. */
static int64_t longest(int64_t milliseconds) {
  int64_t const end = now() + milliseconds * 1000000;
  int64_t most = 0, begun = 0, taken = 0;
  for (begun = now(); begun < end; begun = now()) {
    void *block = trtalloc_allocate(trtalloc_default(), MIB, 0, 0);
    check(block != NULL && trtalloc_deallocate(trtalloc_default(), block), "a pair");
    taken = now() - begun;
    if (taken > most) most = taken;
  }
  return most / 1000;
}

/* Its name is in the stacks of a snapshot. */
__attribute__((noinline)) void *bert_request(void) {
  void *block = NULL;
  trtalloc_set_tag("bert");
  block = trtalloc_allocate(trtalloc_default(), 4 * (uint64_t)MIB, 0, 0);
  trtalloc_set_tag(NULL);
  return block;
}

int main(int argc, char **argv) {
  char line[256];
  void *weights = NULL, *bert = NULL, *last = NULL, *blocks[BLOCKS];
  trtalloc_allocator *other = NULL;
  int at = 0;
  if (argc > 1 && strcmp(argv[1], "quiet") == 0) {
    /* Executed in place of a server: it allocates nothing. */
    puts("ready");
    fflush(stdout);
    pause();
    return 0;
  }
  if (argc > 1 && strcmp(argv[1], "filtered") == 0) filter();
  if (argc > 1 && strcmp(argv[1], "by_code") == 0) {
    check(trtalloc_create("driver=sim,control=1", &other) == TRTALLOC_STATUS_OK, "an allocator");
    check(trtalloc_allocate(other, MIB, 0, 0) != NULL, "its block");
    puts("ready");
    fflush(stdout);
    return fgets(line, sizeof line, stdin) == NULL;
  }
  check((weights = allocate("resnet", 98 * (uint64_t)MIB)) != NULL, "resnet");
  check((bert = allocate("bert", 418 * (uint64_t)MIB)) != NULL, "bert");
  for (at = 0; at < BLOCKS; at++) check((blocks[at] = allocate(NULL, 16 * (uint64_t)MIB)) != NULL, "a block");
  for (at = 0; at < BLOCKS; at++) check(trtalloc_deallocate(trtalloc_default(), blocks[at]), "a free");
  printf("ready\n");
  fflush(stdout);
  while (fgets(line, sizeof line, stdin) != NULL) {
    line[strcspn(line, "\n")] = 0;
    if (strcmp(line, "fork") == 0) {
      /* A child that lives on, and the parent goes on, too. */
      pid_t child = fork();
      if (child == 0) {
        alarm(60);
        for (;;) pause();
      }
      printf("%d\n", (int)child);
    } else if (strcmp(line, "exec") == 0) {
      execl("/proc/self/exe", argv[0], "quiet", (char *)NULL);
      return 2;
    } else if (strcmp(line, "again") == 0) {
      execl("/proc/self/exe", argv[0], (char *)NULL);
      return 2;
    } else if (strcmp(line, "_exit") == 0) {
      _exit(0);
    } else if (strcmp(line, "exit") == 0) {
      exit(0);
    } else if (strcmp(line, "close") == 0) {
      /* As a daemon does. */
      for (at = 3; at < 5000; at++) close(at);
      printf("closed\n");
    } else if (strcmp(line, "reopen") == 0) {
      /* Other files get the numbers of those that were closed. */
      int more = 0;
      while (more >= 0 && more < 4500) more = dup(0);
      printf("open\n");
    } else if (strcmp(line, "second") == 0) {
      check(trtalloc_create("driver=sim", &other) == TRTALLOC_STATUS_OK, "a second allocator");
      check((last = trtalloc_allocate(other, MIB, 0, 0)) != NULL, "its block");
      printf("made\n");
    } else if (strncmp(line, "budget ", 7) == 0) {
      char options[300] = "driver=sim,share_budget=";
      strncat(options, line + 7, sizeof options - strlen(options) - 1);
      check(trtalloc_create(options, &other) == TRTALLOC_STATUS_OK, "an allocator with a budget");
      check(trtalloc_allocate(other, 64 * (uint64_t)MIB, 0, 0) != NULL, "its block");
      printf("made\n");
    } else if (strcmp(line, "destroy") == 0) {
      /* With a block in use. */
      trtalloc_destroy(other);
      printf("destroyed\n");
    } else if (strcmp(line, "free") == 0) {
      check(trtalloc_deallocate(other, last), "the last block");
      printf("freed\n");
    } else if (strcmp(line, "requests") == 0) {
      /* Each request of bert leaves a block behind. */
      for (at = 0; at < 16; at++) check(bert_request() != NULL, "a request");
      printf("served\n");
    } else if (strncmp(line, "busy ", 5) == 0) {
      printf("%lld\n", (long long)longest(atoi(line + 5)));
    } else {
      printf("what?\n");
    }
    fflush(stdout);
  }
  (void)weights, (void)bert;
  return 0;
}
