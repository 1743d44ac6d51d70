/* Options that concern the whole process. Each mark on stderr is followed by what the library says. */
#include "check.h"

/* Creates an allocator, and makes a call that is refused with a warning. */
static void with(const char *options) {
  trtalloc_allocator *allocator = NULL;
  int block;
  fprintf(stderr, "-- %s\n", options);
  CHECK(trtalloc_create(options, &allocator) == TRTALLOC_STATUS_OK);
  CHECK(!trtalloc_deallocate(allocator, &block));
  trtalloc_destroy(allocator);
}

int main(void) {
  with("driver=sim,log=off");
  with("driver=sim");
  with("driver=sim, LOG = warn");
  with("driver=sim,inject=1");
  with("driver=sim,disable=1");
  return 0;
}
