// Decode over f16 pages: attention_decode.cuh.

#include "kernels/attention_decode.cuh"
#include "kernels/attention_launch.h"
#include "kernels/cuda/launch.h"

namespace quire::kernels::attention {
namespace {

using Element = F16;

template <std::uint32_t kColumns>
absl::Status Launch(const CudaContext& context, const TileArgs<Element>& args,
                    std::uint32_t blocks) {
  return cuda::Launch(context, "attention decode", DecodeKernel<Element, kColumns>,
                      {.blocks_x = blocks,
                       .threads = kDecodeThreads,
                       .shared_bytes = DecodeShape<Element, kColumns>::kSharedBytes,
                       .programmatic = true},
                      args);
}

}  // namespace

template <>
absl::Status LaunchDecode<Element>(const CudaContext& context, const TileArgs<Element>& args,
                                   std::uint32_t blocks) {
  if (args.keys.head_size() <= 64) return Launch<64>(context, args, blocks);
  if (args.keys.head_size() <= 96) return Launch<96>(context, args, blocks);
  return Launch<128>(context, args, blocks);
}

}  // namespace quire::kernels::attention
