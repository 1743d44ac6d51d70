// nvcc's keywords as a C++ compiler needs them. NVIDIA's own header is in nvcc's package.
#pragma once

#define __host__
#define __device__
#define __builtin_align__(bytes) __attribute__((aligned(bytes)))
#define __align__(bytes) __attribute__((aligned(bytes)))
#define __cudart_builtin__
#define __device_builtin__
#define __device_builtin_surface_type__
#define __device_builtin_texture_type__
#define CUDARTAPI
#define CUDARTAPI_CDECL
