// A program that uses TensorRT after main: destructors of static objects destroy an object that was created before, and
// create another.
#include <NvInfer.h>

#include <cstdio>
#include <memory>

namespace {

class Logger final : public nvinfer1::ILogger {
    void log(Severity, char const*) noexcept override {}
};

Logger logger;

struct Late {
    ~Late() {
        std::unique_ptr<nvinfer1::IRuntime> const runtime{nvinfer1::createInferRuntime(logger)};
        if (runtime != nullptr) {
            runtime->deserializeCudaEngine("", 1);
        }
    }
};

std::unique_ptr<nvinfer1::IRuntime> held;
Late late;

}  // namespace

int main() {
    held.reset(nvinfer1::createInferRuntime(logger));
    held->deserializeCudaEngine("", 1);
    return 0;
}
