/* Two servers on one GPU, as docs/share-budget.md shows them. The environment has the options. The first server held 16 GiB
   while it was busy and needs 4 GiB now. The second one takes what it can get. */
#define _POSIX_C_SOURCE 200809L
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

enum { MIB = 1 << 20, BLOCK = 16 * MIB, MANY = 2048, BUSY = 1024, QUIET = 256 };

static void *blocks[MANY];

/* Requests blocks until one is refused, or there are `most`. */
static int request(trtalloc_allocator *memory, int most) {
  int count = 0;
  while (count < most && (blocks[count] = trtalloc_allocate(memory, BLOCK, 0, 0)) != NULL) ++count;
  return count;
}

static void release(trtalloc_allocator *memory, int from, int to) {
  for (int at = from; at < to; ++at) CHECK(trtalloc_deallocate(memory, blocks[at]));
}

static void show(const char *who, trtalloc_allocator *memory) {
  trtalloc_stats now;
  CHECK(trtalloc_stats_get(memory, 0, &now, sizeof now) == TRTALLOC_STATUS_OK);
  fprintf(stderr, "%s: %.0f MiB in use, %.0f MiB held\n", who, (double)now.allocated / 1048576.0,
          (double)now.reserved / 1048576.0);
}

static void pass_turn(int to) { CHECK(write(to, "", 1) == 1); }

static void take_turn(int from) {
  char byte;
  CHECK(read(from, &byte, 1) == 1);
}

static void first(int from, int to) {
  trtalloc_allocator *const memory = trtalloc_default();
  CHECK(request(memory, BUSY) == BUSY);
  release(memory, QUIET, BUSY);
  show("first", memory);
  pass_turn(to);
  take_turn(from);
  show("first", memory);
  release(memory, 0, QUIET);
}

static void second(int from, int to) {
  trtalloc_allocator *const memory = trtalloc_default();
  take_turn(from);
  const int count = request(memory, MANY);
  show("second", memory);
  fprintf(stderr, "%s\n", trtalloc_last_error());
  CHECK(trtalloc_last_status() == TRTALLOC_STATUS_OUT_OF_MEMORY);
  pass_turn(to);
  release(memory, 0, count);
}

int main(void) {
  int to_first[2], to_second[2], status = 0;
  CHECK(pipe(to_first) == 0 && pipe(to_second) == 0);
  /* Before the first call of the library: a forked child cannot use its parent's memory. */
  const pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    second(to_second[0], to_first[1]);
    return 0;
  }
  first(to_first[0], to_second[1]);
  CHECK(waitpid(child, &status, 0) == child && status == 0);
  return 0;
}
