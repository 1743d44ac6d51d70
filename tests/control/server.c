/* A server for tests/control: two models and a cache. It prints "ready", and then does what each line on stdin says. */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <trtalloc/trtalloc.h>

enum { MIB = 1 << 20, BLOCKS = 8 };

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

int main(int argc, char **argv) {
  char line[256];
  void *weights = NULL, *bert = NULL, *blocks[BLOCKS];
  trtalloc_allocator *other = NULL;
  int at = 0;
  if (argc > 1 && strcmp(argv[1], "quiet") == 0) {
    /* Executed in place of a server: it allocates nothing. */
    puts("ready");
    fflush(stdout);
    pause();
    return 0;
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
      check(trtalloc_allocate(other, MIB, 0, 0) != NULL, "its block");
      printf("made\n");
    } else if (strcmp(line, "work") == 0) {
      /* The longest of many pairs, in nanoseconds. */
      void *block = allocate(NULL, MIB);
      check(block != NULL && trtalloc_deallocate(trtalloc_default(), block), "a pair");
      printf("worked\n");
    } else {
      printf("what?\n");
    }
    fflush(stdout);
  }
  (void)weights, (void)bert;
  return 0;
}
