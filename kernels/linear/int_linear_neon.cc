// The integer linear kernel with the dot product instructions of ARMv8.2; see
// int_linear_tiles-inl.h.
//
// These instructions multiply signed by signed bytes. An 8-bit weight u is loaded as u - 128, a
// 4-bit weight as stored. A tile of 4 rows x 16 features uses 21 of 32 registers: 16 accumulators,
// 4 weights, 1 broadcast.

#include "kernels/linear/int_linear.h"

#if defined(__ARM_FEATURE_DOTPROD)

#include <arm_neon.h>

#include <cstddef>
#include <cstdint>

namespace quire::kernels::internal {
namespace {

using I = int32x4_t;
using F = float32x4_t;
constexpr std::size_t kLanes = 4;
constexpr std::size_t kColumns = 4;
constexpr bool kCentredBytes = true;

#define QUIRE_OP inline __attribute__((always_inline))

QUIRE_OP void Prefetch(const void* at) {
  __builtin_prefetch(at);
}
QUIRE_OP I Load(const void* from) {
  return vreinterpretq_s32_u8(vld1q_u8(static_cast<const std::uint8_t*>(from)));
}
QUIRE_OP void Store(I v, std::int32_t* to) {
  vst1q_s32(to, v);
}
QUIRE_OP I Zero() {
  return vdupq_n_s32(0);
}
QUIRE_OP I Set32(std::int32_t v) {
  return vdupq_n_s32(v);
}
// Returns the 4 bytes at `from` in every lane.
QUIRE_OP I Broadcast(const void* from) {
  std::int32_t v;
  __builtin_memcpy(&v, from, 4);
  return vdupq_n_s32(v);
}
QUIRE_OP I And(I a, I b) {
  return vandq_s32(a, b);
}
QUIRE_OP I Add32(I a, I b) {
  return vaddq_s32(a, b);
}
QUIRE_OP I Subtract32(I a, I b) {
  return vsubq_s32(a, b);
}
QUIRE_OP I Max32(I a, I b) {
  return vmaxq_s32(a, b);
}
template <int kBits>
QUIRE_OP I ShiftLeft32(I v) {
  return vshlq_n_s32(v, kBits);
}
QUIRE_OP F LoadF(const float* from) {
  return vld1q_f32(from);
}
QUIRE_OP void StoreF(F v, float* to) {
  vst1q_f32(to, v);
}
QUIRE_OP F SetF(float v) {
  return vdupq_n_f32(v);
}
QUIRE_OP F BroadcastF(const float* from) {
  return vdupq_n_f32(*from);
}
QUIRE_OP F ToFloat(I v) {
  return vcvtq_f32_s32(v);
}
// Rounds to nearest even.
QUIRE_OP I Round(F v) {
  return vcvtnq_s32_f32(v);
}
QUIRE_OP F LoadF16(const std::uint16_t* from) {
  return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(from)));
}
QUIRE_OP F Multiply(F a, F b) {
  return vmulq_f32(a, b);
}
QUIRE_OP F MultiplyAdd(F a, F b, F c) {
  return vfmaq_f32(c, a, b);
}
// Converts 4 values of -128 .. 127 to bytes.
QUIRE_OP std::uint32_t NarrowQuad(const std::int32_t* from) {
  const int16x4_t halves = vmovn_s32(vld1q_s32(from));
  return vget_lane_u32(vreinterpret_u32_s8(vmovn_s16(vcombine_s16(halves, halves))), 0);
}

// Loads 8-bit weights as u - 128.
using W = int8x16_t;
QUIRE_OP W LoadBytes(const std::uint8_t* from) {
  return vreinterpretq_s8_u8(veorq_u8(vld1q_u8(from), vdupq_n_u8(128)));
}
QUIRE_OP W LowHalves(I both) {
  return vandq_s8(vreinterpretq_s8_s32(both), vdupq_n_s8(15));
}
QUIRE_OP W HighHalves(I both) {
  return vreinterpretq_s8_u8(vshrq_n_u8(vreinterpretq_u8_s32(both), 4));
}
QUIRE_OP void AddDot(I& acc, W u, I inputs) {
  acc = vdotq_s32(acc, u, vreinterpretq_s8_s32(inputs));
}

}  // namespace
}  // namespace quire::kernels::internal

#include "kernels/linear/int_linear_dots-inl.h"
// This header uses the definitions above.
#include "kernels/linear/int_linear_tiles-inl.h"

namespace quire::kernels::internal {
const IntLinearKernels kIntLinearNeon = {"neon", Quantize, Linear};
}  // namespace quire::kernels::internal

#else

namespace quire::kernels::internal {
const IntLinearKernels kIntLinearNeon = {"neon", nullptr, nullptr};
}  // namespace quire::kernels::internal

#endif
