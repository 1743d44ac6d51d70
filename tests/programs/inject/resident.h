// Whether a loop leaves memory behind: what the process has in RAM, before and after.
#pragma once

#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>

inline std::int64_t resident() {
    std::FILE* const file = std::fopen("/proc/self/statm", "r");
    long long pages = 0;
    if (file == nullptr || std::fscanf(file, "%*s %lld", &pages) != 1) {
        std::perror("/proc/self/statm");
        std::exit(1);
    }
    std::fclose(file);
    return pages * sysconf(_SC_PAGESIZE);
}

// Calls `each` with the numbers below `count`, and returns by how many bytes the process has grown since the first tenth.
template <class Each>
std::int64_t growth(long count, Each each) {
    long number = 0;
    for (; number < count / 10; ++number) {
        each(number);
    }
    std::int64_t const before = resident();
    for (; number < count; ++number) {
        each(number);
    }
    return resident() - before;
}
