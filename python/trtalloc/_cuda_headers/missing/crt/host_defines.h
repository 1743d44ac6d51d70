/* For _torch_allocator.cpp where no CUDA toolkit is installed: NVIDIA's package of the runtime includes this file and does not have it.
   It defines how CUDA's compiler marks functions; for a host compiler that is nothing. */
#ifndef TRTALLOC_HOST_DEFINES_H
#define TRTALLOC_HOST_DEFINES_H

#define __host__
#define __device__
#define __global__
#define __shared__
#define __constant__
#define __managed__
#define __no_return__ __attribute__((noreturn))
#define __noinline__ __attribute__((noinline))
#define __forceinline__ __inline__ __attribute__((always_inline))
#define __align__(n) __attribute__((aligned(n)))
#define __builtin_align__(n) __align__(n)
#define __annotate__(a) __attribute__((a))
#define __location__(a)
#define __device_builtin__
#define __device_builtin_texture_type__
#define __device_builtin_surface_type__
#define __cudart_builtin__
#define __specialization_static static
#define CUDARTAPI
#define CUDARTAPI_CDECL

#endif
