// The part of cuda_runtime.h that RMM's headers need, for a C++ compiler. NVIDIA's own file needs headers of nvcc's
// package.
#pragma once

#include <cuda_runtime_api.h>

inline cudaError_t cudaMallocHost(void** memory, std::size_t bytes, unsigned) { return cudaMallocHost(memory, bytes); }
