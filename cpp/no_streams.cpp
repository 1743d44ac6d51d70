// What `<iostream>` wants of the C++ runtime before main, without use here: cxx prints to a stream only where an application asks
// it to, and none does. Without it no locale is made while the library is loaded, and a fifth of the library is not linked in.
// build.rs has the linker take these for the runtime's own (`--wrap`).

extern "C" {
// std::ios_base::Init::Init() and ~Init()
void __wrap__ZNSt8ios_base4InitC1Ev(void*) {}
void __wrap__ZNSt8ios_base4InitD1Ev(void*) {}
// std::ios_base_library_init(), from GCC 13 on
void __wrap__ZSt21ios_base_library_initv() {}
}
