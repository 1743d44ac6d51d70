//! The Python package: its wheel into a fresh environment, its doctor, its tests; TensorRT's own bindings; real PyTorch, Numba, ONNX
//! Runtime and CuPy over stand-ins for CUDA's libraries, with the simulated libcuda.so.1 below; and RMM, which is C++ but comes
//! from there too.

mod bindings;
mod environment;
mod frameworks;
mod package;
mod rmm;
