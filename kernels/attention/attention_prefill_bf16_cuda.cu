#include "kernels/attention/attention_prefill.cuh"

namespace quire::kernels::attention {

template absl::Status LaunchPrefill<BF16>(const CudaContext& context, const TileArgs<BF16>& args,
                                          std::uint32_t blocks);

}  // namespace quire::kernels::attention
