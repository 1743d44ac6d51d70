// The part of NvInferRuntime.h of TensorRT 10, TensorRT 11 and TensorRT-RTX that an allocator is about: the declarations of cpp/,
// under NVIDIA's names. TEN_MAJOR, TEN_MINOR and TEN_PATCH say which version; TensorRT-RTX has major version 1.
#ifndef NV_INFER_RUNTIME_H
#define NV_INFER_RUNTIME_H

#if TEN_MAJOR == 1
#include "../../../../cpp/output_rtx.h"
#else
#include "../../../../cpp/output10.h"
#endif

#define NV_TENSORRT_MAJOR TEN_MAJOR
#define NV_TENSORRT_MINOR TEN_MINOR
#define NV_TENSORRT_PATCH TEN_PATCH
#define NV_TENSORRT_VERSION (NV_TENSORRT_MAJOR * 10000L + NV_TENSORRT_MINOR * 100L + NV_TENSORRT_PATCH * 1L)

namespace nvinfer1 {

using Dims = Dims64;
using v_1_0::IGpuAllocator;
using v_1_0::IGpuAsyncAllocator;
using v_1_0::IOutputAllocator;

}  // namespace nvinfer1

#endif
