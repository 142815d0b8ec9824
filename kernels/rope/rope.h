#pragma once

// Rotary position embedding. Angles are computed once per step, and rotations once per layer.
// inv_freq and attention_factor already include any rope scaling, so kernels do not depend on its
// kind.

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/backend/backend.h"

namespace quire::kernels {

struct RopeAnglesParams {
  const std::int32_t* positions;  // [num_rows] absolute, >= 0
  const float* inv_freq;          // [num_pairs]
  float* cosines;                 // [num_rows, num_pairs]
  float* sines;                   // [num_rows, num_pairs]
  std::uint32_t num_rows;
  std::uint32_t num_pairs;  // half the rotary size
  float attention_factor = 1;
};

// Computes angle = float(position) * inv_freq[i], cos(angle) * attention_factor and sin(angle) *
// attention_factor in f32. On the CPU returns INVALID_ARGUMENT for a negative position; a GPU does
// not check positions. On a GPU cos and sin are within 1.5e-7 for every angle below 2^31
// (exact_math.h).
absl::Status RopeAngles(const Backend& backend, const RopeAnglesParams& params);

// The columns that form pair i. With rotary size r, kHalf pairs (i, i + r/2) and kInterleaved pairs
// (2i, 2i + 1).
enum class RopeStyle : std::uint8_t { kHalf, kInterleaved };

struct RopeParams {
  float* x;              // [num_rows, num_heads, head_size], rows x_stride apart; rotated in place
  const float* cosines;  // [num_rows, rotary_size / 2]
  const float* sines;    // [num_rows, rotary_size / 2]
  std::int64_t x_stride;
  std::uint32_t num_rows;
  std::uint32_t num_heads;  // adjacent Q and K heads are rotated by one call
  std::uint32_t head_size;
  std::uint32_t rotary_size;       // even; other columns are unchanged
  std::uint32_t rotary_first = 0;  // first rotated column
  RopeStyle style = RopeStyle::kHalf;
};

// Computes for each pair y0 = x0 cos - x1 sin and y1 = x1 cos + x0 sin, with every product rounded
// in f32. Returns INVALID_ARGUMENT if the rotary size is odd or too large, or the stride is less
// than the size of all heads. On a GPU always returns INVALID_ARGUMENT, because QkvStore rotates
// there.
absl::Status Rope(const Backend& backend, const RopeParams& params);

namespace internal {

absl::Status RopeAnglesCuda(const CudaContext& context, const RopeAnglesParams& params);
void RopeAnglesCpu(const RopeAnglesParams& params, std::int64_t row_begin, std::int64_t row_end);
void RopeCpu(const RopeParams& params, std::int64_t row_begin, std::int64_t row_end);

}  // namespace internal
}  // namespace quire::kernels
