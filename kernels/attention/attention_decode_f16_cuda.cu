// Decode over f16 pages: attention_decode.cuh.

#include "kernels/attention/attention_decode.cuh"

namespace quire::kernels::attention {

template absl::Status LaunchDecode<F16>(const CudaContext& context, const TileArgs<F16>& args,
                                        std::uint32_t blocks);

}  // namespace quire::kernels::attention
