// What the programs of this folder have in common.
#ifndef FACES_CHECK_H
#define FACES_CHECK_H

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
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

// What the statistics say that a name holds.
inline std::uint64_t allocated_by(trtalloc_allocator* of, std::string const& name) {
    std::string json(1 << 16, '\0');
    json.resize(trtalloc_stats_json(of, -1, &json[0], json.size()));
    CHECK(!json.empty());
    std::string const beginning = "{\"tag\":\"" + name + "\",\"allocated\":";
    auto const at = json.find(beginning);
    return at == std::string::npos ? 0 : std::strtoull(json.c_str() + at + beginning.size(), nullptr, 10);
}

#endif
