// Prefill over f16 pages: attention_prefill.cuh.

#include "kernels/attention/attention_prefill.cuh"

namespace quire::kernels::attention {

template absl::Status LaunchPrefill<F16>(const CudaContext& context, const TileArgs<F16>& args,
                                         std::uint32_t blocks);

}  // namespace quire::kernels::attention
