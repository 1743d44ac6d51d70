/* A check that says what failed, where, and what the library says of it. */
#include <stdio.h>
#include <stdlib.h>
#include <trtalloc/trtalloc.h>

#define CHECK(condition)                                                                               \
  do {                                                                                                 \
    if (!(condition)) {                                                                                \
      fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #condition, trtalloc_last_error());       \
      exit(1);                                                                                         \
    }                                                                                                  \
  } while (0)
