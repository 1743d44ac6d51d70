// A program that is linked with TensorRT and calls functions that trtalloc only forwards. It declares those that are in
// no header of NVIDIA.
#include <cstdint>
#include <cstdio>

extern "C" void* createInferRefitter_INTERNAL(void* engine, void* logger, std::int32_t version) noexcept;
extern "C" double createLeanRuntime(long a, long b, long c, long d, long e, long f, long g, long h, long i, double r,
                                    double s, double t, double u, double v, double w, double x, double y, double z);

int main() {
    void* const refitter =
        createInferRefitter_INTERNAL(reinterpret_cast<void*>(0x1000), reinterpret_cast<void*>(0x2000), 101601);
    double const sum = createLeanRuntime(1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3, 4, 5, 6, 7, 8, 9);
    std::printf("%p %g\n", refitter, sum);
    return 0;
}
