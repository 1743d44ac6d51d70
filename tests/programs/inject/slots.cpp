// Prints the version of the NVIDIA header that it is compiled with, and the slots of setGpuAllocator in IRuntime and
// IBuilder.
#include "slots.h"

#include <cstdio>

int main() {
    std::printf("%d %zu %zu\n", static_cast<int>(NV_TENSORRT_VERSION), slot_of(&nvinfer1::apiv::VRuntime::setGpuAllocator),
                slot_of(&nvinfer1::apiv::VBuilder::setGpuAllocator));
}
