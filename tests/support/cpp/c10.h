// What PyTorch's libc10 shows of its exceptions, in the shapes that it has had: with C10_EXPORTED the class has a constructor of
// its own in libc10 (2.15), without it only its base has one, and the class is whole where it is thrown. With C10_UNKNOWN the
// constructors are others than any PyTorch has.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace c10 {

struct SourceLocation {
    const char* function;
    const char* file;
    std::uint32_t line;
};

// How many exceptions there are.
extern std::atomic<int> alive;

class Error : public std::exception {
public:
#ifdef C10_UNKNOWN
    Error(SourceLocation at, std::string msg, int more);
#else
    Error(SourceLocation at, std::string msg);
#endif
    Error(Error const& other) : std::exception(other), msg_(other.msg_), context_(other.context_), shared_(other.shared_) { ++alive; }
    ~Error() override { --alive; }
    const char* what() const noexcept override;
    virtual const char* what_without_backtrace() const noexcept { return msg_.c_str(); }

private:
    std::string msg_;
    std::vector<std::string> context_;
    std::shared_ptr<std::string const> shared_;
    mutable std::atomic<std::string*> what_{nullptr};
    const void* caller_ = nullptr;
};

class OutOfMemoryError : public Error {
#if defined(C10_EXPORTED) && !defined(C10_UNKNOWN)
public:
    OutOfMemoryError(SourceLocation at, std::string msg);
#else
    using Error::Error;
#endif
};

} // namespace c10
