// A logger for NVIDIA's libraries: counts what they complain of, and says nothing.
#ifndef FACES_LOGGER_H
#define FACES_LOGGER_H

#include <NvInferRuntime.h>

#include <atomic>

class Logger final : public nvinfer1::ILogger {
public:
    void log(Severity severity, char const*) noexcept override {
        if (severity <= Severity::kERROR) {
            ++errors;
        }
    }

    std::atomic<int> errors{0};
};

#endif
