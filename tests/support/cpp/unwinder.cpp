// Exceptions by way of cpp/unwinder.c: nothing is loaded for them before the first one is thrown, and several threads may throw at
// once. An exception runs the destructors between its throw and its catch, as does the end of a thread.
#include <pthread.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <unwind.h>

#define CHECK(condition)                                                        \
    do {                                                                        \
        if (!(condition)) {                                                     \
            std::fprintf(stderr, "line %d: %s\n", __LINE__, #condition);        \
            std::abort();                                                       \
        }                                                                       \
    } while (false)

namespace {

// Whether this process has loaded libgcc_s.
bool loaded() {
    std::FILE* const maps = std::fopen("/proc/self/maps", "r");
    CHECK(maps != nullptr);
    bool found = false;
    char line[4096];
    while (std::fgets(line, sizeof line, maps) != nullptr) {
        found = found || std::strstr(line, "libgcc_s.so.1") != nullptr;
    }
    std::fclose(maps);
    return found;
}

struct Counted {
    explicit Counted(int& count) : count_(count) { ++count_; }
    ~Counted() { --count_; }
    int& count_;
};

__attribute__((noinline)) void descend(int depth, int& alive) {
    Counted const counted(alive);
    if (depth == 0) {
        throw std::runtime_error("the " + std::to_string(alive) + "th");
    }
    descend(depth - 1, alive);
}

void attempts() {
    for (int round = 0; round < 200; ++round) {
        int alive = 0;
        try {
            descend(20, alive);
            CHECK(!"it returned");
        } catch (std::exception const& error) {
            CHECK(std::string(error.what()) == "the 21th");
        }
        CHECK(alive == 0);
        try {
            try {
                descend(3, alive);
            } catch (...) {
                throw;
            }
        } catch (std::runtime_error const&) {
            continue;
        }
        CHECK(!"it was not thrown again");
    }
}

int ended_alive = 0;

void* ends(void*) {
    Counted const counted(ended_alive);
    CHECK(ended_alive == 1);
    pthread_exit(nullptr);
}

_Unwind_Reason_Code count(_Unwind_Context* context, void* frames) {
    // The outermost frame has no address.
    *static_cast<int*>(frames) += _Unwind_GetIP(context) != 0;
    return _URC_NO_REASON;
}

__attribute__((noinline)) int frames_from(int depth) {
    if (depth > 0) {
        return frames_from(depth - 1) + (depth < 0);
    }
    int frames = 0;
    CHECK(_Unwind_Backtrace(count, &frames) == _URC_END_OF_STACK);
    return frames;
}

} // namespace

int main() {
    CHECK(!loaded());
    std::vector<std::thread> threads;
    for (int thread = 0; thread < 4; ++thread) {
        threads.emplace_back(attempts);
    }
    for (std::thread& thread : threads) {
        thread.join();
    }
    CHECK(loaded());
    pthread_t thread;
    CHECK(pthread_create(&thread, nullptr, ends, nullptr) == 0);
    CHECK(pthread_join(thread, nullptr) == 0);
    CHECK(ended_alive == 0);
    CHECK(frames_from(0) >= 2);
}
