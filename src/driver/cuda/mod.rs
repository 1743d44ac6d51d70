//! CUDA through libcuda.so.1.
