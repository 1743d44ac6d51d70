// A plugin's function that ends with the call, which the compiler makes a jump: the call does not show its caller.
#include <cstdint>

extern "C" void* createInferRuntime_INTERNAL(void* logger, std::int32_t version) noexcept;

extern "C" __attribute__((visibility("default"))) void* make(void* logger, std::int32_t version) {
    return createInferRuntime_INTERNAL(logger, version);
}
