#pragma once

// Declares one launcher per kernel. A launcher is defined in the translation unit that instantiates
// its kernel, because the host stub of a kernel has internal linkage. LaunchDecode and
// LaunchPrefill have one translation unit per page element type, which is part of the file name.

#include "absl/status/status.h"
#include "kernels/attention/attention.h"
#include "kernels/attention/attention_tile.cuh"
#include "kernels/cuda/context.h"

namespace quire::kernels::attention {

// Returns the window, chunk, soft cap and sinks of a layer.
inline ScoreRules RulesOf(const AttentionParams& params) {
  ScoreRules rules;
  rules.window = params.window;
  rules.chunk = params.chunk;
  rules.cap_log2 = params.softcap * kLog2E;
  rules.sinks = params.sinks;
  return rules;
}
// Returns the factor of q . k: scale * log2(e), or scale / soft cap.
inline float ScoreScale(const AttentionParams& params) {
  return params.softcap > 0 ? params.scale / params.softcap : params.scale * kLog2E;
}

// The tensor-core kernels are instantiated for a few head sizes. A layer uses the smallest instance
// that is large enough. Decode launches as many blocks as fit on the GPU, at most `max_blocks`.
template <typename T>
absl::Status LaunchDecode(const CudaContext& context, const TileArgs<T>& args,
                          std::uint32_t max_blocks);
template <typename T>
absl::Status LaunchPrefill(const CudaContext& context, const TileArgs<T>& args,
                           std::uint32_t blocks);

// Like LaunchDecode and LaunchPrefill, for heads of 129 to kMaxWideHead columns over bf16 pages.
inline constexpr std::uint32_t kMaxWideHead = 256;
absl::Status LaunchDecodeWide(const CudaContext& context, const TileArgs<BF16>& args,
                              std::uint32_t blocks);
absl::Status LaunchPrefillWide(const CudaContext& context, const TileArgs<BF16>& args,
                               std::uint32_t blocks);

// Launches the scalar kernel, with one warp per row and head. It supports any head size up to
// kMaxScalarHead, any pages except f16 (INVALID_ARGUMENT), and f32 or bf16 activations.
inline constexpr std::uint32_t kMaxScalarHead = 576;
absl::Status LaunchScalar(const CudaContext& context, const AttentionParams& params);

// Limits and arguments of the MLA kernels, whose cache rows are both K and V. `partials` has room
// for the partial results of `partial_rows` packed rows, kLatentPartialFloats each.
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
  const std::uint32_t* live_sequences;  // AttentionPlanParams::live_sequences
  float* partials;
  std::uint32_t partial_rows;  // at least block_rows
  std::uint32_t num_sms;
  std::uint32_t num_heads;
  std::uint32_t block_rows;     // packed rows of an item; fixed by the kernel
  std::uint32_t value_columns;  // a multiple of 8
  float scale_log2;
};
// REQUIRES: block_rows is kLatentBlockRows.
absl::Status LaunchLatent(const CudaContext& context, const LatentArgs& args);
// Merges the partial results of the preceding MLA kernel. Does nothing if that kernel did not split
// the step.
absl::Status LaunchLatentMerge(const CudaContext& context, const LatentArgs& args);

}  // namespace quire::kernels::attention
