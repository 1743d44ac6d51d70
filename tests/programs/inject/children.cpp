// A program of TensorRT with children of every kind. Its argument chooses the kind. A child that is executed has the
// argument "child". "title" starts no child: it is a server that writes its state over its name.
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

extern "C" int client(char const* library, char const* what);
extern char** environ;

namespace {

// A child's exit status, or 100 plus its signal.
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

// As setproctitle does: moves the environment, and overwrites its old place.
void retitle() {
    std::vector<std::string> variables;
    char* const start = environ[0];
    char* end = start;
    for (char** entry = environ; *entry != nullptr; ++entry) {
        variables.emplace_back(*entry);
        end = *entry + variables.back().size() + 1;
    }
    clearenv();
    for (std::string const& variable : variables) {
        putenv(strdup(variable.c_str()));
    }
    std::memset(start, 0, static_cast<std::size_t>(end - start));
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
    if (what == "title") {
        retitle();
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
