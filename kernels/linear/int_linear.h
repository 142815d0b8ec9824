#pragma once

// The interface of the integer matrix kernels of one instruction set. This header has only plain
// types. The kernels are compiled for different instruction sets, and for a shared inline function
// the linker could keep the copy for the widest instruction set.

#include <cstdint>

namespace quire::kernels::internal {

// Rows of activations as int8. Rows are packed in blocks of 8, then of 4, 2 and 1. A block of R
// rows that starts at row r is at byte r * k_padded, as [k_padded / 4][R][4]. k_padded is k rounded
// up to a multiple of 4 (inputs beyond k are zero).
//
//   8-bit weights: scale = max |x| / 127 of the row's group, q = x * (127 / max |x|)
//   4-bit weights: scale = the least power of two >= max |x| / 127, q = x / scale
//
// where q is rounded to nearest even. A group with max |x| < 2^-96 is treated as zeros: scale 1 and
// q 0. A group with a NaN, or a magnitude of at least 2^117, has scale NaN and q 0.
//
// Powers of two let the widest kernels multiply by a weight's scale with an integer addition of
// exponents. The bounds ensure that results are normal numbers. The rounding step is up to twice as
// large as without powers of two. This step is still a tenth of the rounding step of 4-bit weights.
//
// A group of activations is max(group of the weights, 32) inputs. The last group of a row may be
// shorter. `q`, `sums` and `scales` are aligned to 64 bytes.
struct IntRows {
  std::int8_t* q;
  float* scales;       // [num_rows][ceil(k / group of activations)]
  std::int32_t* sums;  // [num_rows][k / group of weights]; sum of q over each group of weights
};

// Arguments of IntLinearFn, which computes y[m][n] = (total + bias[n]) + residual[m][n]. s is the
// scale of the weights, a the scale of the activations. I is the sum of u * q over a group, where u
// are the stored unsigned weights. O is the offset of u (int8: 128, int4: 8, with mins: 0):
//
//   one scale per feature: total = float(I - O * sum) * (a * s)
//   groups, ascending:     total = fma(float(I - O * sum), a * s, total); with mins then
//                          total = fma(float(sum), a * min, total)
//
// where total starts at 0 and fma rounds once. With has_zero_points, a min is the stored value
// times s, which is exact. sse4 has no fma and rounds twice, so its bits differ. With 4-bit weights
// no s is 0, subnormal in f32 or non-finite. Outputs of rows with a NaN scale are unspecified, and
// LinearQuantized overwrites them.
struct IntLinearArgs {
  const std::uint8_t* panels;  // panels of 16 features (PackedLinear); aligned to 64 bytes
  std::int64_t panel_bytes;    // a multiple of 64
  // [panels][16] f32 with `scale_per_feature`, else [panels][k / group][1 or 2][16] f16: scales,
  // then mins. Aligned to 64 bytes.
  const void* scales;
  std::uint32_t n, k;
  std::uint32_t group;     // group of the weights; k with `scale_per_feature`
  bool scale_per_feature;  // not with is_int4 or has_min
  bool is_int4;
  bool has_min;
  bool has_zero_points;  // only with has_min
  IntRows x;
  std::uint32_t num_rows;
  const float* bias;      // [n] or null
  const float* residual;  // [num_rows][n], residual_stride apart, or null; may be y
  std::int64_t residual_stride;
  float* y;
  std::int64_t y_stride;
};

// Parameters of row quantization, for weights with this k, group and width.
struct RowQuantization {
  std::uint32_t k;
  std::uint32_t group;  // group of the weights
  bool is_int4;
};

// Quantizes rows [row_begin, row_end) of x, [num_rows][k] floats x_stride apart, into `rows`.
// row_begin is the start of a block. row_end is the start of another block, or num_rows.
using QuantizeRowsFn = void (*)(const float* x, std::int64_t x_stride,
                                const RowQuantization& quantization, std::uint32_t num_rows,
                                std::uint32_t row_begin, std::uint32_t row_end,
                                const IntRows& rows);
// Groups of activations whose magnitudes are all below kMinActivation are treated as zeros. Groups
// with a magnitude of at least kActivationLimit are treated as non-finite.
inline constexpr float kMinActivation = 0x1p-96f;
inline constexpr float kActivationLimit = 0x1p117f;

// Computes panels [panel_begin, panel_end) for all rows.
using IntLinearFn = void (*)(const IntLinearArgs& args, std::int64_t panel_begin,
                             std::int64_t panel_end);

struct IntLinearKernels {
  const char* isa;  // "avx512_vnni"
  QuantizeRowsFn quantize;
  IntLinearFn linear;
};

// Kernels per instruction set. Functions are null in builds for other architectures. "scalar" is
// the reference.
extern const IntLinearKernels kIntLinearScalar;
extern const IntLinearKernels kIntLinearSse4;
extern const IntLinearKernels kIntLinearAvx2;
extern const IntLinearKernels kIntLinearAvxVnni;
extern const IntLinearKernels kIntLinearAvx512;
extern const IntLinearKernels kIntLinearAvx512Vnni;
extern const IntLinearKernels kIntLinearAmx;
extern const IntLinearKernels kIntLinearNeon;

// Returns the kernels of ChosenLevel(), or of the next lower level that this machine supports.
const IntLinearKernels& ChosenIntLinear();

}  // namespace quire::kernels::internal
