#include <stdio.h>
#include <trtalloc/trtalloc.h>

int main(void) {
  puts(trtalloc_version());
  return trtalloc_deallocate(trtalloc_default(), NULL) ? 0 : 1;
}
