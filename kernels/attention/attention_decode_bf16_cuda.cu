#include "kernels/attention/attention_decode.cuh"

namespace quire::kernels::attention {

template absl::Status LaunchDecode<BF16>(const CudaContext& context, const TileArgs<BF16>& args,
                                         std::uint32_t blocks);

}  // namespace quire::kernels::attention
