#pragma once

// Helpers for tests of recurrent ops on all devices: state slots filled with NaN, sequences that
// are cut into steps in many ways, and the scan in double precision.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/recurrent/state_rows.h"
#include "kernels/recurrent/state_scan.h"
#include "tests/kernels/kernel_test_util.h"

namespace quire::kernels {

inline constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

// The slots of a layer's states. All but the null slot begin as NaN. A gap of other layers' bytes
// lies between the states of two slots.
class Slots {
 public:
  Slots(std::uint32_t count, std::size_t floats)
      : floats_(floats), stride_((floats + 13) / 4 * 4), values_(count * stride_, kNaN) {
    std::fill_n(values_.begin(), floats, 0.0f);
  }
  std::byte* data() { return reinterpret_cast<std::byte*>(values_.data()); }
  std::int64_t stride_bytes() const { return static_cast<std::int64_t>(stride_ * sizeof(float)); }
  std::vector<float> Slot(std::uint32_t slot) const {
    const auto at = values_.begin() + static_cast<std::ptrdiff_t>(slot * stride_);
    return {at, at + static_cast<std::ptrdiff_t>(floats_)};
  }
  void Put(std::uint32_t slot, const std::vector<float>& state) {
    std::copy(state.begin(), state.end(),
              values_.begin() + static_cast<std::ptrdiff_t>(slot * stride_));
  }
  // True while the null slot is zero and no byte between the states was written.
  bool IsIntact() const {
    for (std::size_t i = 0; i < values_.size(); ++i) {
      const bool in_gap = i % stride_ >= floats_;
      if (in_gap && !std::isnan(values_[i])) return false;
      if (i < floats_ && values_[i] != 0) return false;
    }
    return true;
  }

 private:
  std::size_t floats_;
  std::size_t stride_;
  std::vector<float> values_;
};

inline constexpr std::uint32_t kSlots =
    6;  // the null slot, two for each of two rows, one for snapshots
inline constexpr std::uint32_t kSnapshotSlot = 5;

// How a sequence is cut into steps.
struct Steps {
  std::vector<std::uint32_t> chunks;
  std::uint32_t snapshot_at = 0;  // tokens; 0: none
  bool in_place = true;           // a step writes the slot that it reads
};

// The states and results of a sequence.
struct Result {
  std::vector<float> out;
  std::vector<float> state;
  std::vector<float> snapshot;
  friend bool operator==(const Result&, const Result&) = default;
};

// Calls run(rows, first token, tokens) for each step of a sequence. It is row 2 of three: row 0 has
// no tokens, and row 1 computes the same tokens as a sequence of its own in every step.
template <typename Run>
Result RunSteps(const Steps& steps, std::size_t state_floats, Run&& run) {
  Slots slots(kSlots, state_floats);
  std::uint32_t done = 0, from = 3;
  for (const std::uint32_t chunk : steps.chunks) {
    const std::uint32_t to = steps.in_place ? from : from == 3 ? 4 : 3;
    const bool is_last = done + chunk >= steps.snapshot_at && done < steps.snapshot_at;
    const std::uint32_t in[] = {0, 1, from};
    const std::uint32_t out[] = {0, 2, to};
    const std::uint32_t at[] = {0, 0, is_last ? steps.snapshot_at : 0};
    const std::uint32_t snapshot[] = {0, 0, is_last ? kSnapshotSlot : 0};
    const std::uint32_t offsets[] = {0, 0, chunk, 2 * chunk};
    std::vector<std::int32_t> positions(2 * chunk);
    std::iota(positions.begin(), positions.begin() + chunk, 0);
    std::iota(positions.begin() + chunk, positions.end(), static_cast<std::int32_t>(done));
    run(StateRows{.states = slots.data(),
                  .slot_stride = slots.stride_bytes(),
                  .slots = {.state_in = in,
                            .state_out = out,
                            .snapshot_at = at,
                            .snapshot_slot = snapshot,
                            .max_rows = 3},
                  .row_offsets = offsets,
                  .positions = positions.data(),
                  .batch_size = 3,
                  .num_tokens = 2 * chunk},
        done, chunk);
    done += chunk;
    from = to;
  }
  EXPECT_TRUE(slots.IsIntact());
  return {.out = {}, .state = slots.Slot(from), .snapshot = slots.Slot(kSnapshotSlot)};
}

// Returns ways to cut `tokens` tokens into steps.
inline std::vector<Steps> Cuts(std::uint32_t tokens) {
  std::vector<Steps> cuts;
  for (const std::uint32_t chunk : {1u, 2u, 7u, 63u, 64u, 65u, 200u}) {
    Steps steps{.chunks = {}, .in_place = chunk % 2 == 0};
    for (std::uint32_t left = tokens; left > 0;) {
      steps.chunks.push_back(std::min(chunk, left));
      left -= steps.chunks.back();
    }
    cuts.push_back(steps);
  }
  cuts.push_back({.chunks = std::vector<std::uint32_t>(tokens, 1)});
  return cuts;
}

// The bits of values, so that NaN equals NaN.
inline std::vector<std::uint32_t> Bits(const std::vector<float>& values) {
  std::vector<std::uint32_t> bits(values.size());
  std::memcpy(bits.data(), values.data(), values.size() * sizeof(float));
  return bits;
}

struct ScanShape {
  std::uint32_t heads, key_heads, key_size, value_size;
  bool delta, decays_channels, has_skip;
  float strongest;  // most negative logarithm of a decay
  bool tiles_key_heads = false;
};

inline std::string NameOf(const ScanShape& s) {
  return absl::StrCat(s.delta ? "delta" : "ssd", s.decays_channels ? "_channels" : "", "_",
                      s.key_size, "x", s.value_size, "_", s.heads, "on", s.key_heads, "_decay",
                      static_cast<int>(-s.strongest), s.has_skip ? "_skip" : "",
                      s.tiles_key_heads ? "_tiled" : "");
}

// The inputs of a scan of `tokens` tokens, with k of norm 1 if the rule is the delta rule.
struct ScanInputs {
  ScanInputs(const ScanShape& s, std::uint32_t tokens, std::uint32_t seed) : shape(s) {
    columns = 2 * s.key_heads * s.key_size + s.heads * s.value_size;
    stride = columns + 5;
    qkv = RandomFloats(tokens * stride, seed);
    for (std::size_t head = 0; head < 2 * std::size_t{s.key_heads} * tokens; ++head) {
      float* const x =
          qkv.data() + head / (2 * s.key_heads) * stride + head % (2 * s.key_heads) * s.key_size;
      float sum = 0;
      for (std::size_t i = 0; i < s.key_size; ++i) sum += x[i] * x[i];
      for (std::size_t i = 0; i < s.key_size; ++i) x[i] /= std::sqrt(sum);
    }
    const std::size_t decays = s.heads * (s.decays_channels ? s.key_size : 1);
    decay = RandomFloats(tokens * decays, seed + 1);
    for (float& value : decay) {
      value = std::exp(s.strongest * std::fmod(std::fabs(value), 1.0f));
    }
    rate = RandomFloats(tokens * s.heads, seed + 2);
    for (float& value : rate) value = 1 / (1 + std::exp(-value));
    skip = RandomFloats(s.heads, seed + 3);
  }

  StateScanParams Params(const StateRows& rows, float* out) const {
    const std::size_t keys = shape.key_heads * shape.key_size;
    return {.rows = rows,
            .q = qkv.data(),
            .k = qkv.data() + keys,
            .v = qkv.data() + 2 * keys,
            .decay = decay.data(),
            .rate = rate.data(),
            .skip = shape.has_skip ? skip.data() : nullptr,
            .out = out,
            .qkv_stride = static_cast<std::int64_t>(stride),
            .heads = shape.heads,
            .key_heads = shape.key_heads,
            .key_size = shape.key_size,
            .value_size = shape.value_size,
            .decays_channels = shape.decays_channels,
            .delta = shape.delta,
            .tiles_key_heads = shape.tiles_key_heads};
  }

  ScanShape shape;
  std::size_t columns = 0;
  std::size_t stride = 0;
  std::vector<float> qkv;  // [tokens, stride]: q, k, v
  std::vector<float> decay;
  std::vector<float> rate;
  std::vector<float> skip;
};

struct ExactScan {
  std::vector<double> out;
  std::vector<double> state;
};

inline ExactScan ScanInDouble(const ScanInputs& in, std::uint32_t tokens) {
  const ScanShape& s = in.shape;
  const std::size_t dk = s.key_size, dv = s.value_size, keys = s.key_heads * dk;
  ExactScan exact{std::vector<double>(tokens * s.heads * dv),
                  std::vector<double>(s.heads * dk * dv)};
  for (std::size_t t = 0; t < tokens; ++t) {
    for (std::size_t h = 0; h < s.heads; ++h) {
      const std::size_t key_head =
          s.tiles_key_heads ? h % s.key_heads : h / (s.heads / s.key_heads);
      const float* const q = in.qkv.data() + t * in.stride + key_head * dk;
      const float* const k = q + keys;
      const float* const v = in.qkv.data() + t * in.stride + 2 * keys + h * dv;
      double* const state = exact.state.data() + h * dk * dv;
      const std::size_t at = t * s.heads + h;
      for (std::size_t c = 0; c < dv; ++c) {
        double predicted = 0, sum = 0;
        for (std::size_t i = 0; i < dk; ++i) {
          state[i * dv + c] *= double{s.decays_channels ? in.decay[at * dk + i] : in.decay[at]};
          predicted += state[i * dv + c] * double{k[i]};
        }
        const double u = double{in.rate[at]} * (double{v[c]} - (s.delta ? predicted : 0));
        for (std::size_t i = 0; i < dk; ++i) {
          state[i * dv + c] += double{k[i]} * u;
          sum += state[i * dv + c] * double{q[i]};
        }
        exact.out[at * dv + c] = sum + (s.has_skip ? double{in.skip[h]} * double{v[c]} : 0);
      }
    }
  }
  return exact;
}

// Returns the inputs of tokens [first, first + count), twice.
inline std::vector<float> Twice(const std::vector<float>& values, std::size_t row,
                                std::size_t first, std::size_t count) {
  std::vector<float> copy(values.begin(),
                          values.begin() + static_cast<std::ptrdiff_t>(count * row));
  const auto at = values.begin() + static_cast<std::ptrdiff_t>(first * row);
  copy.insert(copy.end(), at, at + static_cast<std::ptrdiff_t>(count * row));
  return copy;
}

}  // namespace quire::kernels
