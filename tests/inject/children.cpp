// A program of TensorRT with children of every kind. Argument: which. A child that is started anew has "child".
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>

extern "C" int client(char const* library, char const* what);
extern char** environ;

namespace {

// What a child left: its exit status, or 100 and the signal.
int end_of(pid_t child) {
    int status = 0;
    if (child < 0 || waitpid(child, &status, 0) != child) {
        std::exit(90);
    }
    return WIFEXITED(status) ? WEXITSTATUS(status) : 100 + WTERMSIG(status);
}

int forked() {
    pid_t const child = fork();
    if (child == 0) {
        std::printf("child\n");
        std::fflush(stdout);
        std::exit(client("", ""));
    }
    return end_of(child);
}

int vforked(char** arguments) {
    pid_t const child = vfork();
    if (child == 0) {
        execv("/proc/self/exe", arguments);
        _exit(91);
    }
    return end_of(child);
}

int spawned(char** arguments) {
    pid_t child = -1;
    if (posix_spawn(&child, "/proc/self/exe", nullptr, nullptr, arguments, environ) != 0) {
        return 92;
    }
    return end_of(child);
}

}  // namespace

int main(int, char** argv) {
    std::string const what = argv[1];
    std::string word = "child";
    char* arguments[] = {argv[0], word.data(), nullptr};
    std::setvbuf(stdout, nullptr, _IONBF, 0);
    if (what == "child") {
        return client("", "");
    }
    if (what == "before") {
        return forked() + client("", "");
    }
    int const own = client("", "");
    if (what == "after") {
        return own + forked() + client("", "");
    }
    if (what == "vfork") {
        return own + vforked(arguments) + client("", "");
    }
    if (what == "spawn") {
        return own + spawned(arguments) + client("", "");
    }
    if (what == "exec") {
        execv("/proc/self/exe", arguments);
        return 93;
    }
    return 94;
}
