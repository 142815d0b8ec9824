#include "kernels/linear/packed_linear.h"

#include <algorithm>

#include "base/overloaded.h"

namespace quire::kernels {
namespace {

// Calls fn(weights) if the encoding is Int8Weights or Int4Weights. Otherwise returns `other`.
template <typename Result, typename Fn>
Result IfIntegers(const WeightEncoding& encoding, Result other, Fn&& fn) {
  if (const auto* const int8 = std::get_if<Int8Weights>(&encoding)) return fn(*int8);
  if (const auto* const int4 = std::get_if<Int4Weights>(&encoding)) return fn(*int4);
  return other;
}

}  // namespace

WeightFormat PackedLinear::format() const {
  return std::visit(Overloaded{[](const PlainWeights&) { return WeightFormat::kPlain; },
                               [](const Int8Weights&) { return WeightFormat::kInt8; },
                               [](const Int4Weights&) { return WeightFormat::kInt4; },
                               [](const GgmlWeights& ggml) { return ggml.format; },
                               [](const Fp8Weights&) { return WeightFormat::kFp8E4M3; },
                               [](const Fp4Weights&) { return WeightFormat::kFp4E2M1; }},
                    encoding_);
}

DType PackedLinear::dtype() const {
  return std::visit(Overloaded{[](const PlainWeights& plain) { return plain.dtype; },
                               [this](const Int8Weights& int8) {
                                 return int8.group == k_ && !int8.has_zero_points ? DType::kF32
                                                                                  : DType::kF16;
                               },
                               [](const Fp8Weights&) { return DType::kF32; },
                               [](const Fp4Weights&) { return DType::kBF16; },
                               [](const auto&) { return DType::kF16; }},
                    encoding_);
}

std::uint32_t PackedLinear::group() const {
  return std::visit(Overloaded{[this](const PlainWeights&) { return k_; },
                               [](const Fp4Weights&) { return Fp4Weights::kGroup; },
                               [](const auto& weights) { return weights.group; }},
                    encoding_);
}

bool PackedLinear::has_min() const {
  return std::holds_alternative<GgmlWeights>(encoding_) || has_zero_points();
}

bool PackedLinear::has_zero_points() const {
  return IfIntegers(encoding_, false, [](const auto& ints) { return ints.has_zero_points; });
}

bool PackedLinear::has_ordered_pairs() const {
  const auto* const plain = std::get_if<PlainWeights>(&encoding_);
  return plain != nullptr && plain->has_ordered_pairs;
}

bool PackedLinear::quantizes_activations() const {
  const auto* const fp8 = std::get_if<Fp8Weights>(&encoding_);
  return fp8 != nullptr && fp8->product != Fp8Product::kWeightOnly;
}

bool PackedLinear::has_row_major_fp8() const {
  const auto* const fp8 = std::get_if<Fp8Weights>(&encoding_);
  return fp8 != nullptr && fp8->product == Fp8Product::kTensorCores;
}

const std::uint32_t* PackedLinear::act_order() const {
  const void* const order = IfIntegers<const void*>(
      encoding_, nullptr, [](const auto& ints) { return ints.act_order.data(); });
  return static_cast<const std::uint32_t*>(order);
}

const cuda::LtPlans* PackedLinear::library_plans() const {
  const auto* const plain = std::get_if<PlainWeights>(&encoding_);
  return plain == nullptr ? nullptr : plain->library_plans;
}

const cuda::TmaTile* PackedLinear::map() const {
  if (const auto* const plain = std::get_if<PlainWeights>(&encoding_)) return plain->map.get();
  const auto* const fp8 = std::get_if<Fp8Weights>(&encoding_);
  return fp8 == nullptr ? nullptr : fp8->map.get();
}

std::int64_t PackedLinear::PanelBytes(WeightFormat format, DType dtype, std::uint32_t k) {
  if (format == WeightFormat::kInt8 || format == WeightFormat::kFp8E4M3) {
    return (std::int64_t{k} + 3) / 4 * 4 * kPanel;
  }
  if (format == WeightFormat::kInt4) return std::int64_t{k} / 2 * kPanel;
  return (std::int64_t{k} + 1) / 2 * 2 * kPanel * DTypeSize(dtype);
}

std::int64_t PackedLinear::size_bytes() const {
  const std::int64_t order = IfIntegers<std::int64_t>(
      encoding_, 0, [](const auto& ints) { return ints.act_order.size_bytes(); });
  return data_.size_bytes() + scales_.size_bytes() + order;
}

float PackedLinear::IntegerAt(std::uint32_t n, std::uint32_t k) const {
  const auto* const panel =
      static_cast<const std::uint8_t*>(data_.data()) + n / kPanel * panel_bytes();
  const std::size_t r = n % kPanel;
  if (const std::uint32_t* const order = act_order()) {
    k = static_cast<std::uint32_t>(std::find(order, order + k_, k) - order);
  }
  int q = 0;
  if (format() == WeightFormat::kInt4) {
    const int both = panel[(std::size_t{k} / 8 * kPanel + r) * 4 + k % 4];
    q = (k % 8 < 4 ? both & 15 : both >> 4) - (has_min() ? 0 : 8);
  } else {
    q = panel[(std::size_t{k} / 4 * kPanel + r) * 4 + k % 4] - (has_min() ? 0 : 128);
  }
  const auto value = static_cast<float>(q);
  if (dtype() == DType::kF32) return value * static_cast<const float*>(scales_.data())[n];
  const std::size_t parts = has_min() ? 2 : 1;
  const F16* const scale =
      static_cast<const F16*>(scales_.data()) +
      ((std::size_t{n} / kPanel * (k_ / group()) + k / group()) * parts) * kPanel + r;
  if (!has_min()) return value * scale->ToFloat();
  const float min = scale[kPanel].ToFloat();
  return has_zero_points() ? (value + min) * scale->ToFloat() : value * scale->ToFloat() + min;
}

float PackedLinear::Fp8At(std::uint32_t n, std::uint32_t k) const {
  const auto* const panel =
      static_cast<const std::uint8_t*>(data_.data()) + n / kPanel * panel_bytes();
  const std::size_t r = n % kPanel;
  const std::size_t groups = (k_ + group() - 1) / group();
  const float scale =
      static_cast<const float*>(scales_.data())[(n / kPanel * groups + k / group()) * kPanel + r];
  return F8E4M3{panel[(std::size_t{k} / 4 * kPanel + r) * 4 + k % 4]}.ToFloat() * scale;
}

float PackedLinear::PlainAt(std::uint32_t n, std::uint32_t k) const {
  const std::byte* const panel =
      static_cast<const std::byte*>(data_.data()) + n / kPanel * panel_bytes();
  const std::size_t r = n % kPanel;
  if (dtype() == DType::kF32) {
    return reinterpret_cast<const float*>(panel)[std::size_t{k} * kPanel + r];
  }
  const std::size_t unit = has_ordered_pairs() ? k / 4 * 2 + k % 2 : k / 2;
  const std::size_t half = has_ordered_pairs() ? 1 - k % 4 / 2 : k % 2;
  const std::uint16_t bits =
      reinterpret_cast<const std::uint16_t*>(panel)[(unit * kPanel + r) * 2 + half];
  return dtype() == DType::kBF16 ? BF16{bits}.ToFloat() : F16{bits}.ToFloat();
}

float PackedLinear::At(std::uint32_t n, std::uint32_t k) const {
  if (format() == WeightFormat::kFp8E4M3) return Fp8At(n, k);
  return format() == WeightFormat::kPlain ? PlainAt(n, k) : IntegerAt(n, k);
}

}  // namespace quire::kernels
