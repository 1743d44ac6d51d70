// Replaces the C++ runtime's initialization that `<iostream>` requests before main. cxx prints to a stream only if an
// application asks it to, and none does. Without the initialization no locale is created while the library is loaded,
// and a fifth of the library is not linked in. build.rs makes the linker use these functions (`--wrap`).

extern "C" {
// std::ios_base::Init::Init() and ~Init()
void __wrap__ZNSt8ios_base4InitC1Ev(void*) {}
void __wrap__ZNSt8ios_base4InitD1Ev(void*) {}
// std::ios_base_library_init(), since GCC 13
void __wrap__ZSt21ios_base_library_initv() {}
}
