/* For _torch_allocator.cpp, which calls the runtime's C functions only. NVIDIA's file needs headers of CUDA's compiler, which are not
   installed with PyTorch. */
#include <cuda_runtime_api.h>
