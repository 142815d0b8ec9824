#pragma once

// One launcher per kernel, each defined in the unit that instantiates it: a kernel's host stub is
// internal to its unit. The suffix of a unit names the pages' element.

#include "absl/status/status.h"
#include "kernels/attention/attention.h"
#include "kernels/attention/attention_tile.cuh"
#include "kernels/cuda/context.h"

namespace quire::kernels::attention {

// What the kernels make of the params: ScoreRules, and the factor on q . k beside them.
inline ScoreRules RulesOf(const AttentionParams& params) {
  ScoreRules rules;
  if (params.window != 0) rules.window = params.window;
  rules.cap_log2 = params.softcap * kLog2E;
  rules.sinks = params.sinks;
  return rules;
}
inline float ScoreScale(const AttentionParams& params) {
  return params.softcap > 0 ? params.scale / params.softcap : params.scale * kLog2E;
}

// Head sizes that the tensor-core kernels are built for; a head runs in the smallest that holds it.
// Decode launches as many blocks as run at a time, at most `most_blocks`.
template <typename T>
absl::Status LaunchDecode(const CudaContext& context, const TileArgs<T>& args,
                          std::uint32_t most_blocks);
template <typename T>
absl::Status LaunchPrefill(const CudaContext& context, const TileArgs<T>& args,
                           std::uint32_t blocks);

// The same for heads of 129 to kMaxWideHead columns over bf16 pages.
inline constexpr std::uint32_t kMaxWideHead = 256;
absl::Status LaunchDecodeWide(const CudaContext& context, const TileArgs<BF16>& args,
                              std::uint32_t blocks);
absl::Status LaunchPrefillWide(const CudaContext& context, const TileArgs<BF16>& args,
                               std::uint32_t blocks);

// One warp for a row and head: any head size up to kMaxScalarHead, any pages, f32 or bf16
// activations.
inline constexpr std::uint32_t kMaxScalarHead = 576;
absl::Status LaunchScalar(const CudaContext& context, const AttentionParams& params);

// Rows of latent attention, K and V in one. Partial results of `partial_rows` packed rows have room
// at `partials`, kLatentPartialFloats each.
inline constexpr std::uint32_t kMaxLatentColumns = 576;
inline constexpr std::uint32_t kMaxLatentValues = 512;
inline constexpr std::uint32_t kLatentBlockRows = 32;
inline constexpr std::uint32_t kLatentPartialFloats = kMaxLatentValues + 2;
struct LatentArgs {
  KvView<BF16> rows;  // one head, a multiple of 16 columns
  const BF16* q;
  BF16* out;
  std::int64_t q_stride;
  std::int64_t out_stride;
  const std::uint32_t* row_offsets;
  float* partials;
  std::uint32_t partial_rows;  // at least block_rows
  std::uint32_t num_sms;
  std::uint32_t batch_size;
  std::uint32_t num_heads;
  std::uint32_t block_rows;     // packed rows of an item, what the kernel takes
  std::uint32_t value_columns;  // a multiple of 8
  float scale_log2;
};
// REQUIRES: block_rows is kLatentBlockRows.
absl::Status LaunchLatent(const CudaContext& context, const LatentArgs& args);
// The rows whose spans a kernel of latent rows in front of it left as items of their own.
absl::Status LaunchLatentMerge(const CudaContext& context, const LatentArgs& args);

}  // namespace quire::kernels::attention
