#include "kernels/attention/attention_decode.cuh"

namespace quire::kernels::attention {

template absl::Status LaunchDecode<std::int8_t>(const CudaContext& context,
                                                const TileArgs<std::int8_t>& args,
                                                std::uint32_t blocks);

}  // namespace quire::kernels::attention
