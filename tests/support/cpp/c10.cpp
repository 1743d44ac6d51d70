// A stand-in for libc10.so, or with C10_CUDA for libc10_cuda.so, which throws the class.
#include "c10.h"

#ifdef C10_CUDA
extern "C" void c10_cuda_fails() {
#ifdef C10_UNKNOWN
    throw c10::OutOfMemoryError({"", "", 0}, "", 0);
#else
    throw c10::OutOfMemoryError({"", "", 0}, "");
#endif
}
#else
namespace c10 {

std::atomic<int> alive{0};

#ifdef C10_UNKNOWN
Error::Error(SourceLocation at, std::string msg, int)
#else
Error::Error(SourceLocation at, std::string msg)
#endif
    : msg_(std::move(msg)), context_{at.function, at.file}, shared_(std::make_shared<std::string const>(msg_)) {
    ++alive;
}

const char* Error::what() const noexcept { return msg_.c_str(); }

#if defined(C10_EXPORTED) && !defined(C10_UNKNOWN)
OutOfMemoryError::OutOfMemoryError(SourceLocation at, std::string msg) : Error(at, std::move(msg)) {}
#endif

} // namespace c10
#endif
