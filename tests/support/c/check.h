/* Checks that say what failed, where, and what the library says of it. */
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

/* A call that answers NULL or false, and leaves that status with words. */
#define REFUSED(call, expected)                                                                        \
  do {                                                                                                 \
    CHECK(!(call));                                                                                    \
    CHECK(trtalloc_last_status() == (expected));                                                       \
    CHECK(trtalloc_last_error()[0] != 0);                                                              \
  } while (0)
