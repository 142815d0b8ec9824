// Schedules products with bf16 activations and contains the reference implementation.

#include "kernels/linear/bf16_linear.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <vector>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include "base/dtype.h"
#include "kernels/backend/isa.h"
#include "kernels/linear/fp8_rows.h"

namespace quire::kernels {

namespace {

// Returns true if vdpbf16ps, which does two multiply-adds, is faster than two separate
// multiply-adds. CPUs with AMX issue it at half the rate of multiply-adds, other CPUs at the same
// rate.
bool HasFastPairs() {
#if defined(__x86_64__)
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  const bool has_tiles = __get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) != 0 && (edx >> 24 & 1);
  return !has_tiles && __get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx) != 0 && (eax >> 5 & 1);
#else
  return false;
#endif
}

std::int64_t CeilDivide(std::int64_t a, std::int64_t b) {
  return (a + b - 1) / b;
}

}  // namespace

CpuActivations ResolveCpuActivations(CpuActivations activations, bool weights_are_bf16) {
  const bool uses_vdpbf16ps = internal::NeedsOrderedRows(internal::ChosenBf16Multiply());
  if (activations == CpuActivations::kAuto && uses_vdpbf16ps && weights_are_bf16) {
    return CpuActivations::kBF16;
  }
  return ResolveCpuActivations(activations);
}

std::int64_t Bf16LinearScratchBytes(std::uint32_t num_rows, std::uint32_t k) {
  return CeilDivide(num_rows, internal::kRowTile) * internal::kRowTile *
         CeilDivide(k, internal::kBlock) * internal::kBlock * 2;
}

std::int64_t Bf16LinearThreadBytes(std::uint32_t num_rows, std::uint32_t k) {
  // The temporary f32 row of RoundRowToTile and the product use the same memory at different times.
  const std::int64_t row = CeilDivide(k, internal::kRowTile) * internal::kRowTile * 4;
  return std::max(row, internal::WeightScratchBytes(k) + internal::TotalBytes(num_rows, k));
}

namespace internal {

Bf16MultiplyFn ChosenBf16Multiply() {
  const CpuLevel level = ChosenLevel();
  if (level == CpuLevel::kAmx) return kBf16MultiplyAmx;
  static const bool has_fast_pairs = HasFastPairs();
  return level == CpuLevel::kAvx512Vnni && has_fast_pairs ? kBf16MultiplyAvx512Bf16 : nullptr;
}

bool NeedsOrderedRows(Bf16MultiplyFn multiply) {
  return multiply != nullptr && multiply == kBf16MultiplyAvx512Bf16;
}

float FlushedFma(float a, float b, float c) {
  const auto read = [](float x) -> double {
    return std::fabs(x) < 0x1p-126f ? std::copysign(0.0f, x) : x;
  };
  const double product = read(a) * read(b);  // exact
  const double addend = read(c);
  double sum = product + addend;
  // Rounding the sum to odd before rounding it to f32 gives the same result as rounding once. The
  // error of the sum is computed by Knuth's TwoSum.
  const double part = sum - product;
  const double error = (product - (sum - part)) + (addend - part);
  if (std::isfinite(sum) && error != 0) {
    const auto bits = std::bit_cast<std::uint64_t>(sum);
    const bool is_outward = (error > 0) == (sum > 0);
    if ((bits & 1) == 0) sum = std::bit_cast<double>(is_outward ? bits + 1 : bits - 1);
  }
  // Flushes results that are below 2^-126 after rounding to 24 bits.
  if (std::fabs(sum) < 0x1p-126 - 0x1p-151) return std::copysign(0.0f, static_cast<float>(sum));
  return static_cast<float>(sum);
}

float FlushedAdd(float a, float b) {
  return FlushedFma(a, 1, b);
}

namespace {

// Returns a weight in bf16. Ties of dequantized weights are rounded away from zero.
float RoundedWeight(const PackedLinear& w, std::uint32_t n, std::uint32_t k) {
  const float value = w.At(n, k);
  if (w.format() == WeightFormat::kPlain) return BF16::FromFloat(value).ToFloat();
  const auto bits = std::bit_cast<std::uint32_t>(value);
  return std::bit_cast<float>((bits + 0x8000) & 0xffff0000);
}

}  // namespace

void LinearBf16Cpu(const LinearParams& params, std::int64_t panel_begin, std::int64_t panel_end) {
  const PackedLinear& w = *params.weight;
  const std::uint32_t k = w.k();
  const std::uint32_t* const order = w.act_order();
  const auto input = [&](std::uint32_t i) { return order == nullptr ? i : order[i]; };
  std::vector<float> x(std::size_t{params.num_rows} * k);
  for (std::uint32_t m = 0; m < params.num_rows; ++m) {
    const float* const from = params.x.f32() + m * params.x_stride;  // [K]
    std::vector<float> row(from, from + k);
    if (w.quantizes_activations()) RoundRowFp8(from, k, 1, row.data());
    for (std::uint32_t i = 0; i < k; ++i) {
      x[std::size_t{m} * k + i] = BF16::FromFloat(row[input(i)]).ToFloat();
    }
  }
  std::vector<float> weights(k);
  const auto end =
      static_cast<std::uint32_t>(std::min<std::int64_t>(w.n(), panel_end * PackedLinear::kPanel));
  for (auto n = static_cast<std::uint32_t>(panel_begin * PackedLinear::kPanel); n < end; ++n) {
    for (std::uint32_t i = 0; i < k; ++i) weights[i] = RoundedWeight(w, n, input(i));
    for (std::uint32_t m = 0; m < params.num_rows; ++m) {
      float total = 0;
      for (std::uint32_t k0 = 0; k0 < k; k0 += kBlock) {
        float sums[2] = {};  // even and odd inputs
        for (std::uint32_t i = k0; i < std::min<std::uint32_t>(k, k0 + kBlock); ++i) {
          sums[i % 2] = FlushedFma(x[std::size_t{m} * k + i], weights[i], sums[i % 2]);
        }
        total = FlushedAdd(total, FlushedAdd(sums[0], sums[1]));
      }
      if (params.bias != nullptr) total += params.bias[n];
      if (params.residual != nullptr) total += params.residual[m * params.residual_stride + n];
      params.y.f32()[m * params.y_stride + n] = total;
    }
  }
}

void LinearBf16(const Backend& backend, const LinearParams& params, Bf16MultiplyFn multiply) {
  const PackedLinear& weight = *params.weight;
  const std::uint32_t k = weight.k();
  auto* const x = reinterpret_cast<std::uint16_t*>(backend.op_workspace().Reserve(
      static_cast<std::size_t>(Bf16LinearScratchBytes(params.num_rows, k))));
  const std::int64_t tile_size = CeilDivide(k, kBlock) * kBlock * kRowTile;
  const auto thread_bytes = static_cast<std::size_t>(Bf16LinearThreadBytes(params.num_rows, k));
  // Nanoseconds per input.
  const double cost = weight.quantizes_activations()  ? 4
                      : weight.act_order() != nullptr ? 0.8
                                                      : 0.2;
  backend.ParallelFor(
      params.num_rows, static_cast<double>(k) * cost,
      [&](std::int64_t begin, std::int64_t end, int part) {
        auto* const row = reinterpret_cast<float*>(backend.workspace(part).Reserve(thread_bytes));
        for (std::int64_t m = begin; m < end; ++m) {
          std::uint16_t* const to = x + m / kRowTile * tile_size + m % kRowTile * kBlock;
          RoundRowToTile(params, m, to, row);
          if (NeedsOrderedRows(multiply)) kBf16OrderAvx512Bf16(to, CeilDivide(k, kBlock));
        }
      });
  // A core streams weights at about 20 GB/s. Per nanosecond, it computes about 40 multiply-adds in
  // vectors and, in a prototype, 600 in AMX tiles.
  const double work = static_cast<double>(weight.panel_bytes()) * 0.05 +
                      static_cast<double>(k) * params.num_rows * (multiply == nullptr ? 0.4 : 0.03);
  backend.ParallelFor(
      weight.num_panels(), work,
      [&](std::int64_t begin, std::int64_t end, int part) {
        const Bf16Panels job = {params, x, multiply, backend.workspace(part).Reserve(thread_bytes)};
        LinearBf16Panels(job, begin, end);
      },
      // Threads take units of several panels. With few panels per thread, units are small, so that
      // all threads have work. With vdpbf16ps, units are always small, because a thread whose core
      // also serves clients finishes late.
      NeedsOrderedRows(multiply) || weight.num_panels() < GroupPanels(k) * backend.num_threads()
          ? kPanelGrain
          : GroupPanels(k));
}

}  // namespace internal
}  // namespace quire::kernels
