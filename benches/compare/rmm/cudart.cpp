// The functions of the CUDA runtime that RMM's pools call. They do nothing, so that only the pools' own work is
// measured, unless a device is set: then they are calls of that device.
// They are in a file of their own so that the compiler does not inline them.
#include <cuda_runtime_api.h>

#include <atomic>
#include <cstdint>

#include "device.h"

Device const* rmm_device = nullptr;

cudaError_t cudaGetDevice(int* device) {
    *device = 0;
    return cudaSuccess;
}

cudaError_t cudaGetDeviceCount(int* count) {
    *count = 1;
    return cudaSuccess;
}

cudaError_t cudaMemGetInfo(std::size_t* free, std::size_t* total) {
    *free = *total = std::size_t{80} << 30;
    return cudaSuccess;
}

// A pool identifies its streams by their events.
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
    static std::atomic<std::uintptr_t> last{0};
    *event = reinterpret_cast<cudaEvent_t>(++last);
    return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
    if (rmm_device != nullptr) { rmm_device->event_record(rmm_device->data, event, stream); }
    return cudaSuccess;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
    if (rmm_device != nullptr) { rmm_device->stream_wait_event(rmm_device->data, stream, event); }
    return cudaSuccess;
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
    if (rmm_device != nullptr) { rmm_device->event_synchronize(rmm_device->data, event); }
    return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
    if (rmm_device != nullptr) { rmm_device->stream_synchronize(rmm_device->data, stream); }
    return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t) { return cudaSuccess; }
cudaError_t cudaDeviceSynchronize() { return cudaSuccess; }
cudaError_t cudaGetLastError() { return cudaSuccess; }
char const* cudaGetErrorName(cudaError_t) { return "cudaSuccess"; }
char const* cudaGetErrorString(cudaError_t) { return "no error"; }
