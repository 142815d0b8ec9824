#include "kernels/attention/attention_decode.cuh"

namespace quire::kernels::attention {

template absl::Status LaunchDecode<F8E4M3>(const CudaContext& context, const TileArgs<F8E4M3>& args,
                                           std::uint32_t blocks);

}  // namespace quire::kernels::attention
