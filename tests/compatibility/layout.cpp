// Prints how IGpuAllocator and IOutputAllocator are laid out, as NVIDIA's header says or, with -DOURS, as cpp/tensorrt10.h and
// cpp/output10.h (with -DRTX too, cpp/output_rtx.h) do.
#ifdef OURS
#ifdef RTX
#include "../../cpp/output_rtx.h"
#else
#include "../../cpp/output10.h"
#endif
namespace nvinfer1 {
using Dims = Dims64;
using v_1_0::IOutputAllocator;
using v_1_0::IGpuAllocator;
using v_1_0::IGpuAsyncAllocator;
}  // namespace nvinfer1
#else
#include <NvInferRuntime.h>
#endif

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <type_traits>
#include <typeinfo>

namespace {

// A virtual function's place in the table: what the Itanium ABI keeps in a pointer to it, on x86-64 with the lowest bit set.
template <class Function>
void slot(char const* name, Function function) {
    std::uintptr_t word = 0;
    static_assert(sizeof(function) == 2 * sizeof(word), "a pointer to a member function is two words");
    std::memcpy(&word, &function, sizeof word);
    std::printf("%s: slot %zu, %s\n", name, static_cast<std::size_t>((word & ~std::uintptr_t{1}) / sizeof(void*)),
                typeid(Function).name());
}

}  // namespace

int main() {
    using namespace nvinfer1;
    slot("getAPILanguage", &IGpuAllocator::getAPILanguage);
    // Which of the two classes declares it first makes no difference to the table.
    slot("getInterfaceInfo",
         static_cast<InterfaceInfo (IGpuAllocator::*)() const noexcept>(&IGpuAllocator::getInterfaceInfo));
    slot("allocate", &IGpuAllocator::allocate);
    slot("reallocate", &IGpuAllocator::reallocate);
    slot("deallocate", &IGpuAllocator::deallocate);
    slot("allocateAsync", &IGpuAllocator::allocateAsync);
    slot("deallocateAsync", &IGpuAllocator::deallocateAsync);
    slot("async allocateAsync", static_cast<void* (IGpuAsyncAllocator::*)(std::uint64_t, std::uint64_t, std::uint32_t,
                                                                         CUstream_st*) noexcept>(
                                    &IGpuAsyncAllocator::allocateAsync));
#ifndef RTX
    slot("reallocateOutput", &IOutputAllocator::reallocateOutput);
#endif
    slot("reallocateOutputAsync", &IOutputAllocator::reallocateOutputAsync);
    slot("notifyShape", &IOutputAllocator::notifyShape);
    std::printf("IOutputAllocator: %s, %zu bytes, derives from IVersionedInterface: %d\n", typeid(IOutputAllocator).name(),
                sizeof(IOutputAllocator), std::is_base_of<IVersionedInterface, IOutputAllocator>::value);
    std::printf("Dims: %zu bytes, nbDims %zu, d %zu of %zu\n", sizeof(Dims), offsetof(Dims, nbDims), offsetof(Dims, d),
                sizeof(Dims::d) / sizeof(Dims::d[0]));
    std::printf("IGpuAllocator: %s, %zu bytes, derives from IVersionedInterface: %d\n", typeid(IGpuAllocator).name(),
                sizeof(IGpuAllocator), std::is_base_of<IVersionedInterface, IGpuAllocator>::value);
    std::printf("IGpuAsyncAllocator: %s, %zu bytes, derives from IGpuAllocator: %d\n", typeid(IGpuAsyncAllocator).name(),
                sizeof(IGpuAsyncAllocator), std::is_base_of<IGpuAllocator, IGpuAsyncAllocator>::value);
    std::printf("InterfaceInfo: %zu bytes, kind %zu, major %zu, minor %zu\n", sizeof(InterfaceInfo),
                offsetof(InterfaceInfo, kind), offsetof(InterfaceInfo, major), offsetof(InterfaceInfo, minor));
    std::printf("APILanguage: %zu bytes, kCPP %d\n", sizeof(APILanguage), static_cast<int>(APILanguage::kCPP));
    return 0;
}
