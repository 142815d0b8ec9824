#include "kernels/attention/attention_prefill.cuh"

namespace quire::kernels::attention {

template absl::Status LaunchPrefill<F8E4M3>(const CudaContext& context,
                                            const TileArgs<F8E4M3>& args, std::uint32_t blocks);

}  // namespace quire::kernels::attention
