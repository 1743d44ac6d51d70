/* Allocators that were destroyed leave no file descriptor behind, however many there were. */
#include <dirent.h>

#include "check.h"

static int descriptors(void) {
  int count = 0;
  DIR *folder = opendir("/proc/self/fd");
  CHECK(folder != NULL);
  while (readdir(folder) != NULL) count++;
  closedir(folder);
  return count;
}

static void one(int resizable) {
  trtalloc_allocator *allocator;
  void *plain, *other;
  CHECK(trtalloc_create(resizable ? "driver=sim" : "driver=sim,backing=malloc", &allocator) == TRTALLOC_STATUS_OK);
  plain = trtalloc_allocate(allocator, 3 << 20, 0, 0);
  other = trtalloc_allocate(allocator, 1 << 20, 0, resizable ? TRTALLOC_RESIZABLE : 0);
  CHECK(plain != NULL && other != NULL);
  trtalloc_destroy(allocator);
  /* A block that is still out is good until it is given back. */
  CHECK(trtalloc_deallocate(allocator, plain) && trtalloc_deallocate(allocator, other));
}

int main(void) {
  int before, at;
  one(0);
  before = descriptors();
  for (at = 0; at < 200; at++) one(at % 2);
  CHECK(descriptors() <= before);
  return 0;
}
