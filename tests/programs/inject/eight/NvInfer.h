// The part of TensorRT 8's and 9's NvInfer.h that creates objects, declared by this project, so that a stand-in and its
// callers can be compiled: NVIDIA's headers of those versions may not be copied. Functions that are called have their names;
// functions that only fill a slot in a table of virtual functions are numbered.
#ifndef NV_INFER_H
#define NV_INFER_H

#include <NvInferRuntime.h>

#include <cstddef>

namespace nvinfer1 {

class ICudaEngine;

class ILogger {
public:
    enum class Severity : std::int32_t { kINTERNAL_ERROR = 0, kERROR = 1, kWARNING = 2, kINFO = 3, kVERBOSE = 4 };
    virtual void log(Severity severity, char const* msg) noexcept = 0;
    virtual ~ILogger() = default;
};

namespace apiv {

class VRoot {
public:
    virtual ~VRoot() noexcept = default;
};

class VRuntime : public VRoot {
public:
    virtual ICudaEngine* deserializeCudaEngine(void const* blob, std::size_t size, void* ignored) noexcept = 0;
    virtual void slot3() noexcept = 0;
    virtual void slot4() noexcept = 0;
    virtual void slot5() noexcept = 0;
    virtual void setGpuAllocator(IGpuAllocator* allocator) noexcept = 0;
};

class VBuilder : public VRoot {
public:
    virtual void slot2() noexcept = 0;
    virtual void slot3() noexcept = 0;
    virtual void slot4() noexcept = 0;
    virtual void slot5() noexcept = 0;
    virtual void slot6() noexcept = 0;
    virtual void slot7() noexcept = 0;
    virtual void setGpuAllocator(IGpuAllocator* allocator) noexcept = 0;
    virtual void reset() noexcept = 0;
};

}  // namespace apiv

class INoCopy {
protected:
    INoCopy() = default;
    virtual ~INoCopy() = default;
};

class IRuntime : public INoCopy {
public:
    virtual ~IRuntime() noexcept = default;
    ICudaEngine* deserializeCudaEngine(void const* blob, std::size_t size) noexcept {
        return mImpl->deserializeCudaEngine(blob, size, nullptr);
    }
    void setGpuAllocator(IGpuAllocator* allocator) noexcept { mImpl->setGpuAllocator(allocator); }

protected:
    apiv::VRuntime* mImpl;
};

class IBuilder : public INoCopy {
public:
    virtual ~IBuilder() noexcept = default;
    void setGpuAllocator(IGpuAllocator* allocator) noexcept { mImpl->setGpuAllocator(allocator); }
    void reset() noexcept { mImpl->reset(); }

protected:
    apiv::VBuilder* mImpl;
};

}  // namespace nvinfer1

extern "C" void* createInferRuntime_INTERNAL(void* logger, std::int32_t version) noexcept;
extern "C" void* createInferBuilder_INTERNAL(void* logger, std::int32_t version) noexcept;
extern "C" void* createInferRefitter_INTERNAL(void* engine, void* logger, std::int32_t version) noexcept;

namespace nvinfer1 {
namespace {

inline IRuntime* createInferRuntime(ILogger& logger) noexcept {
    return static_cast<IRuntime*>(createInferRuntime_INTERNAL(&logger, NV_TENSORRT_VERSION));
}

inline IBuilder* createInferBuilder(ILogger& logger) noexcept {
    return static_cast<IBuilder*>(createInferBuilder_INTERNAL(&logger, NV_TENSORRT_VERSION));
}

}  // namespace
}  // namespace nvinfer1

extern "C" std::int32_t getInferLibVersion() noexcept;

#endif
