// Prefill over int8 pages: attention_prefill.cuh.

#include "kernels/attention_launch.h"
#include "kernels/attention_prefill.cuh"
#include "kernels/cuda/launch.h"

namespace quire::kernels::attention {
namespace {

using Element = std::int8_t;

template <std::uint32_t kColumns>
absl::Status Launch(const CudaContext& context, const TileArgs<Element>& args,
                    std::uint32_t blocks) {
  return cuda::Launch(context, "attention prefill", PrefillKernel<Element, kColumns>,
                      {.blocks_x = blocks,
                       .threads = kPrefillThreads,
                       .shared_bytes = PrefillShape<Element, kColumns>::kSharedBytes,
                       .programmatic = true},
                      args);
}

}  // namespace

template <>
absl::Status LaunchPrefill<Element>(const CudaContext& context, const TileArgs<Element>& args,
                                    std::uint32_t blocks) {
  if (args.keys.head_size() <= 64) return Launch<64>(context, args, blocks);
  return Launch<128>(context, args, blocks);
}

}  // namespace quire::kernels::attention
