// What rmm.hpp needs of RMM's header of that name.
#pragma once

struct CUstream_st;

namespace rmm {

class cuda_stream_view {
public:
    cuda_stream_view() = default;
    CUstream_st* value() const noexcept { return stream_; }

private:
    CUstream_st* stream_ = nullptr;
};

}  // namespace rmm
