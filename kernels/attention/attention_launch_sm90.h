#pragma once

// Attention kernels for compute capability 9.0, which read K and V through tensor maps.

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/attention/attention_launch.h"
#include "kernels/attention/attention_tile.cuh"
#include "kernels/attention/kv_tensor_maps.h"
#include "kernels/cuda/context.h"

namespace quire::kernels::attention {

// Runs the prefill work list over pages of T. Query and output heads of a row are 16-byte aligned.
template <typename T>
absl::Status LaunchPrefillSm90(const CudaContext& context, const TileArgs<T>& args,
                               const cuda::KvLayerMaps& maps, std::uint32_t blocks);

// Runs the decode work list over bf16 pages. The results are bitwise equal to those of
// LaunchDecode.
absl::Status LaunchDecodeSm90(const CudaContext& context, const TileArgs<BF16>& args,
                              const cuda::KvLayerMaps& maps, std::uint32_t max_blocks);

// Like LaunchLatent, for compute capability 9.0. The results are not bitwise equal. REQUIRES:
// block_rows is kLatentBlockRowsSm90, scale_log2 is positive, rows of q and out are 16-byte
// aligned.
inline constexpr std::uint32_t kLatentBlockRowsSm90 = 64;
absl::Status LaunchLatentSm90(const CudaContext& context, const LatentArgs& args,
                              const cuda::TmaTile& rows);

}  // namespace quire::kernels::attention
