// Prints the version of NVIDIA's header that it is compiled with, and the places of IRuntime's and IBuilder's setGpuAllocator.
#include "slots.h"

#include <cstdio>

int main() {
    std::printf("%d %zu %zu\n", static_cast<int>(NV_TENSORRT_VERSION), slot_of(&nvinfer1::apiv::VRuntime::setGpuAllocator),
                slot_of(&nvinfer1::apiv::VBuilder::setGpuAllocator));
}
