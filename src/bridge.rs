//! The cxx bridge: TensorRT's interfaces, implemented in C++, forward here.
