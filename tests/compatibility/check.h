// What the programs of this folder have in common.
#ifndef FACES_CHECK_H
#define FACES_CHECK_H

#include <cstdio>
#include <cstdlib>
#include <trtalloc/trtalloc.h>

// Ends the program where the condition does not hold, and says what the library says of it.
#define CHECK(condition)                                                                                      \
    do {                                                                                                      \
        if (!(condition)) {                                                                                   \
            std::fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #condition, trtalloc_last_error());    \
            std::exit(1);                                                                                     \
        }                                                                                                     \
    } while (false)

inline trtalloc_stats stats(trtalloc_allocator* of) {
    trtalloc_stats out;
    CHECK(trtalloc_stats_get(of, -1, &out, sizeof out) == TRTALLOC_STATUS_OK);
    return out;
}

#endif
