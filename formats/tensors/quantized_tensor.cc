#include "formats/tensors/quantized_tensor.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status.h"

namespace quire::formats {
namespace {

constexpr std::int64_t kMaxIntegerInputs = 65536;
// Nibble i of a word has the code of output kInterleaved[i]. Nibble 0 has the lowest bits.
constexpr std::array<int, 8> kInterleaved = {0, 2, 4, 6, 1, 3, 5, 7};
constexpr std::array<float, 16> kE2M1Values = {0,     0.5f,  1,     1.5f,  2,  3,  4,  6,
                                               -0.0f, -0.5f, -1.0f, -1.5f, -2, -3, -4, -6};
constexpr std::array<float, 256> kE4M3Values = [] {
  std::array<float, 256> values{};
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = F8E4M3{static_cast<std::uint8_t>(i)}.ToFloat();
  }
  return values;
}();
constexpr int kExponentBias = 127;
constexpr int kNanExponent = 255;

std::uint8_t Byte(const StoredTensor& tensor, std::int64_t i) {
  return std::to_integer<std::uint8_t>(tensor.bytes[static_cast<std::size_t>(i)]);
}

template <typename T>
T ElementOf(const StoredTensor& tensor, std::int64_t i) {
  T value;
  std::memcpy(&value, tensor.bytes.data() + i * static_cast<std::int64_t>(sizeof(T)),
              sizeof(value));
  return value;
}

std::uint32_t Word(const StoredTensor& tensor, std::int64_t i) {
  return ElementOf<std::uint32_t>(tensor, i);
}

// Extracts code `slot` of a word.
std::uint8_t CodeOf(std::uint32_t word, std::int64_t slot, std::uint32_t bits) {
  const std::uint32_t mask = (1u << bits) - 1;
  return static_cast<std::uint8_t>(word >> (static_cast<std::uint32_t>(slot) * bits) & mask);
}

// Returns the nibble of a word that has the code of output n.
std::int64_t SlotOfOutput(std::int64_t n) {
  const auto* const found = std::find(kInterleaved.begin(), kInterleaved.end(), n % 8);
  return found - kInterleaved.begin();
}

bool IsF16(float value) {
  return F16::FromFloat(value).ToFloat() == value;
}

// Returns whether `scale` is a power of two with which every value of `codes` times `scale` is
// exact in bf16. The values have at most 4 significant bits, which fit in bf16, so only the
// exponent range matters. For e2m1 (0.5 to 6) the smallest e8m0 scale, 2^-127, gives subnormals of
// bf16, and the largest accepted scale, 2^125, does not overflow.
bool FitsBF16(float scale, CodeLayout codes) {
  const bool is_e2m1 = codes == CodeLayout::kE2M1Blocks;
  const int least = is_e2m1 ? -126 : -119;  // exponents of frexp, whose significand is 0.5
  const int largest = is_e2m1 ? 126 : 118;
  int exponent = 0;
  return std::fabs(std::frexp(scale, &exponent)) == 0.5f && exponent >= least &&
         exponent <= largest;
}

template <typename... What>
absl::Status Refuse(const StoredTensor& tensor, const What&... what) {
  return absl::InvalidArgumentError(
      absl::StrCat(tensor.file, ": tensor ", tensor.name, ": ", what...));
}

}  // namespace

bool QuantizedTensor::IsInteger() const {
  return parts_.code_layout != CodeLayout::kE4M3 && parts_.code_layout != CodeLayout::kE2M1Blocks;
}

std::int64_t QuantizedTensor::NumGroups() const {
  return (parts_.columns + parts_.group - 1) / parts_.group;
}

absl::StatusOr<std::shared_ptr<const QuantizedTensor>> QuantizedTensor::Create(
    QuantizedParts parts) {
  QUIRE_CHECK(parts.rows > 0 && parts.columns > 0 && parts.group > 0);
  std::shared_ptr<QuantizedTensor> tensor(new QuantizedTensor(std::move(parts)));
  QUIRE_ASSIGN_OR_RETURN(const ScaleTraits traits, tensor->CheckScales());
  QUIRE_RETURN_IF_ERROR(tensor->CheckZeros());
  QUIRE_RETURN_IF_ERROR(tensor->CheckOrder());
  if (!tensor->IsInteger() && traits.are_powers_of_two) tensor->plain_dtype_ = DType::kBF16;
  tensor->integer_shape_ = tensor->ChooseShape(traits);
  if (!tensor->integer_shape_) tensor->order_.clear();
  tensor->fp8_shape_ = tensor->ChooseFp8Shape();
  return std::shared_ptr<const QuantizedTensor>(std::move(tensor));
}

std::vector<const StoredTensor*> QuantizedTensor::Sources() const {
  std::vector<const StoredTensor*> sources = {&parts_.codes, &parts_.scales};
  if (parts_.zeros) sources.push_back(&*parts_.zeros);
  if (parts_.group_indices) sources.push_back(&*parts_.group_indices);
  for (const StoredTensor& tensor : parts_.unused) sources.push_back(&tensor);
  return sources;
}

float QuantizedTensor::Scale(std::int64_t element) const {
  const StoredTensor& scales = parts_.scales;
  switch (scales.dtype) {
    case DType::kF32:
      return ElementOf<float>(scales, element);
    case DType::kF16:
      return ElementOf<F16>(scales, element).ToFloat();
    case DType::kBF16:
      return ElementOf<BF16>(scales, element).ToFloat();
    default:
      break;
  }
  const int exponent = Byte(scales, element);
  if (exponent == kNanExponent) return std::numeric_limits<float>::quiet_NaN();
  return std::ldexp(1.0f, exponent - kExponentBias);
}

float QuantizedTensor::ScaleOf(std::int64_t row, std::int64_t group) const {
  return Scale(row / parts_.rows_per_scale * parts_.row_stride + group * parts_.group_stride);
}

std::int32_t QuantizedTensor::ZeroOf(std::int64_t row, std::int64_t group) const {
  const std::int64_t groups = NumGroups();
  const std::int64_t per_word = 32 / parts_.bits;
  const std::int32_t half = 1 << (parts_.bits - 1);
  switch (parts_.zero_layout) {
    case ZeroLayout::kNone:
      return half;
    case ZeroLayout::kSignedBytes:
      return (Byte(*parts_.zeros, row * groups + group) ^ 0x80) + parts_.zero_offset;
    case ZeroLayout::kWordsOfOutputs:
      return CodeOf(Word(*parts_.zeros, group * (parts_.rows / per_word) + row / per_word),
                    row % per_word, parts_.bits) +
             parts_.zero_offset;
    case ZeroLayout::kWordsOfOutputsInterleaved:
      return CodeOf(Word(*parts_.zeros, group * (parts_.rows / per_word) + row / per_word),
                    SlotOfOutput(row), parts_.bits) +
             parts_.zero_offset;
    case ZeroLayout::kWordsOfOutputsOutputMajor:
      return CodeOf(Word(*parts_.zeros, row / per_word * groups + group), row % per_word,
                    parts_.bits) +
             parts_.zero_offset;
  }
  return half;
}

absl::StatusOr<QuantizedTensor::ScaleTraits> QuantizedTensor::CheckScales() const {
  const StoredTensor& scales = parts_.scales;
  const std::int64_t elements = scales.num_elements();
  const float largest_value = IsInteger() ? static_cast<float>(1u << parts_.bits)
                              : parts_.code_layout == CodeLayout::kE4M3 ? 448.0f
                                                                        : 6.0f;
  const float max_scale = std::numeric_limits<float>::max() / largest_value;
  // ReadIntegerRow doubles e2m1 values and halves their scales.
  const float factor = parts_.code_layout == CodeLayout::kE2M1Blocks ? 0.5f : 1.0f;
  ScaleTraits traits;
  // Updates the traits with a scale. Returns whether the scale is valid.
  const auto add_scale = [&](float scale) {
    traits.fit_f16 &= IsF16(scale * factor);
    if (!IsInteger()) traits.are_powers_of_two &= FitsBF16(scale, parts_.code_layout);
    return std::fabs(scale) <= max_scale;
  };
  if (DTypeSize(scales.dtype) <= 1) {
    // A scale grows with its exponent byte, so only the smallest and the largest byte are checked.
    const auto [least, largest] = std::minmax_element(scales.bytes.begin(), scales.bytes.end());
    // Both calls are made first, because each updates the traits.
    const bool is_least_valid = add_scale(Scale(least - scales.bytes.begin()));
    const bool is_largest_valid = add_scale(Scale(largest - scales.bytes.begin()));
    if (is_least_valid && is_largest_valid) return traits;
  }
  for (std::int64_t i = 0; i < elements; ++i) {
    const float scale = Scale(i);
    if (add_scale(scale)) continue;
    return Refuse(scales, "element ", i, " of ", elements, " is ", scale,
                  ", a scale must be finite and at most ", max_scale);
  }
  return traits;
}

absl::Status QuantizedTensor::CheckZeros() {
  if (parts_.zero_layout == ZeroLayout::kNone) return absl::OkStatus();
  const std::int32_t half = 1 << (parts_.bits - 1);
  const std::int32_t top = (1 << parts_.bits) - 1;
  // If all zero points are half of the range, every stored byte equals `symmetric`.
  const std::int32_t stored_half =
      parts_.zero_layout == ZeroLayout::kSignedBytes ? 0 : half - parts_.zero_offset;
  const auto symmetric = static_cast<std::byte>(parts_.bits == 4 ? stored_half * 17 : stored_half);
  const std::span<const std::byte> bytes = parts_.zeros->bytes;
  are_zeros_symmetric_ =
      std::all_of(bytes.begin(), bytes.end(), [&](std::byte byte) { return byte == symmetric; });
  if (are_zeros_symmetric_) return absl::OkStatus();
  if (parts_.zero_offset == 0 && !parts_.requires_symmetric_zeros) return absl::OkStatus();
  const std::int64_t groups = NumGroups();
  for (std::int64_t group = 0; group < groups; ++group) {
    for (std::int64_t row = 0; row < parts_.rows; ++row) {
      const std::int32_t zero = ZeroOf(row, group);
      if (zero > top) {
        return Refuse(*parts_.zeros, "output ", row, " of group ", group, " stores ",
                      zero - parts_.zero_offset, ", which files of GPTQ version 1 contain for a ",
                      "zero point of 0; it would be decoded as ", zero);
      }
      if (zero != half && parts_.requires_symmetric_zeros) {
        return Refuse(*parts_.zeros, "output ", row, " of group ", group, " has zero point ", zero,
                      ", quantization_config.sym requires ", half,
                      "; checkpoint_format must state whether zero points are stored minus 1");
      }
    }
  }
  return absl::OkStatus();
}

absl::Status QuantizedTensor::CheckOrder() {
  if (!parts_.group_indices) return absl::OkStatus();
  const std::int64_t groups = NumGroups();
  bool is_ascending = true;
  for (std::int64_t column = 0; column < parts_.columns; ++column) {
    const std::int64_t group = ElementOf<std::int32_t>(*parts_.group_indices, column);
    if (group < 0 || group >= groups) {
      return Refuse(*parts_.group_indices, "element ", column, " of ", parts_.columns, " is ",
                    group, ", it must be a group from 0 to ", groups - 1);
    }
    is_ascending &= group == column / parts_.group;
  }
  if (is_ascending) {
    parts_.unused.push_back(*std::move(parts_.group_indices));
    parts_.group_indices.reset();
  } else {
    SortInputs();
  }
  return absl::OkStatus();
}

void QuantizedTensor::SortInputs() {
  const auto groups = static_cast<std::size_t>(NumGroups());
  std::vector<std::vector<std::uint32_t>> inputs(groups);
  for (std::int64_t column = 0; column < parts_.columns; ++column) {
    const auto group =
        static_cast<std::size_t>(ElementOf<std::int32_t>(*parts_.group_indices, column));
    inputs[group].push_back(static_cast<std::uint32_t>(column));
  }
  for (const std::vector<std::uint32_t>& group : inputs) {
    if (static_cast<std::int64_t>(group.size()) != parts_.group) return order_.clear();
    order_.insert(order_.end(), group.begin(), group.end());
  }
}

std::optional<QuantizedShape> QuantizedTensor::ChooseShape(const ScaleTraits& traits) const {
  if (parts_.code_layout == CodeLayout::kE4M3 || (parts_.group_indices && order_.empty()) ||
      parts_.columns > kMaxIntegerInputs ||
      parts_.rows > std::numeric_limits<std::int32_t>::max()) {
    return std::nullopt;
  }
  QuantizedShape shape = {
      .format = parts_.bits == 4 && IsInteger() ? WeightFormat::kInt4 : WeightFormat::kInt8,
      .n = static_cast<std::uint32_t>(parts_.rows),
      .k = static_cast<std::uint32_t>(parts_.columns),
      .group = static_cast<std::uint32_t>(parts_.columns),
      .has_min = !are_zeros_symmetric_,
      .has_zero_points = !are_zeros_symmetric_,
      .has_act_order = !order_.empty()};
  // With one scale per output feature, scales are f32 and need not fit f16.
  if (NumGroups() == 1 && shape.scale_per_feature()) return shape;
  if (!traits.fit_f16) return std::nullopt;
  for (const std::uint32_t group : {128u, 64u, 32u, 16u}) {
    if (parts_.group % group != 0 || parts_.columns % group != 0) continue;
    shape.group = group;
    if (CheckQuantizedShape(shape).ok()) return shape;
  }
  return std::nullopt;
}

std::optional<Fp8Shape> QuantizedTensor::ChooseFp8Shape() const {
  constexpr std::int64_t kMax = std::numeric_limits<std::int32_t>::max();
  if (parts_.code_layout != CodeLayout::kE4M3 || parts_.rows > kMax || parts_.columns > kMax) {
    return std::nullopt;
  }
  const Fp8Shape shape = {
      .n = static_cast<std::uint32_t>(parts_.rows),
      .k = static_cast<std::uint32_t>(parts_.columns),
      .group = static_cast<std::uint32_t>(std::min(parts_.group, parts_.columns))};
  if (!CheckFp8Shape(shape).ok()) return std::nullopt;
  return shape;
}

std::uint8_t QuantizedTensor::CodeAt(std::int64_t row, std::int64_t column) const {
  const StoredTensor& codes = parts_.codes;
  const std::int64_t per_word = 32 / parts_.bits;
  const std::int64_t element = row * parts_.columns + column;
  switch (parts_.code_layout) {
    case CodeLayout::kWordsOfInputs:
      return CodeOf(Word(codes, column / per_word * parts_.rows + row), column % per_word,
                    parts_.bits);
    case CodeLayout::kWordsOfOutputs:
      return CodeOf(Word(codes, column * (parts_.rows / per_word) + row / per_word),
                    SlotOfOutput(row), parts_.bits);
    case CodeLayout::kWordsOfInputsOutputMajor: {
      const std::int64_t words = (parts_.columns + per_word - 1) / per_word;
      return CodeOf(Word(codes, row * words + column / per_word), column % per_word, parts_.bits);
    }
    case CodeLayout::kSignedBytes:
      return Byte(codes, element) ^ 0x80;
    case CodeLayout::kE4M3:
      return Byte(codes, element);
    case CodeLayout::kE2M1Blocks:
      return static_cast<std::uint8_t>(Byte(codes, element / 2) >> (element % 2 * 4) & 15);
  }
  return 0;
}

float QuantizedTensor::ReadValue(std::int64_t row, std::int64_t column) const {
  const std::uint8_t code = CodeAt(row, column);
  const std::int64_t group = parts_.group_indices
                                 ? ElementOf<std::int32_t>(*parts_.group_indices, column)
                                 : column / parts_.group;
  const float scale = ScaleOf(row, group);
  if (IsInteger()) return static_cast<float>(code - ZeroOf(row, group)) * scale;
  const bool is_e4m3 = parts_.code_layout == CodeLayout::kE4M3;
  return (is_e4m3 ? kE4M3Values[code] : kE2M1Values[code]) * scale;
}

void QuantizedTensor::ReadCodes(std::int64_t row, std::span<std::uint8_t> out) const {
  // Copies members to locals. A byte write may alias the members, so the compiler would reload
  // them.
  const std::uint32_t bits = parts_.bits;
  const std::int64_t rows = parts_.rows;
  const std::int64_t k = parts_.columns;
  const std::int64_t per_word = 32 / bits;
  const std::byte* const bytes = parts_.codes.bytes.data();
  const auto word_at = [bytes](std::int64_t i) {
    std::uint32_t word;
    std::memcpy(&word, bytes + i * 4, sizeof(word));
    return word;
  };
  std::uint8_t* const to = out.data();
  switch (parts_.code_layout) {
    case CodeLayout::kWordsOfInputs:
    case CodeLayout::kWordsOfInputsOutputMajor: {
      const bool is_output_major = parts_.code_layout == CodeLayout::kWordsOfInputsOutputMajor;
      const std::int64_t words = (k + per_word - 1) / per_word;
      const std::int64_t first = is_output_major ? row * words : row;
      const std::int64_t step = is_output_major ? 1 : rows;
      for (std::int64_t i = 0; i < words; ++i) {
        const std::uint32_t word = word_at(first + i * step);
        const std::int64_t count = std::min(per_word, k - i * per_word);
        for (std::int64_t slot = 0; slot < count; ++slot) {
          to[i * per_word + slot] = CodeOf(word, slot, bits);
        }
      }
      return;
    }
    case CodeLayout::kWordsOfOutputs: {
      const std::int64_t slot = SlotOfOutput(row);
      const std::int64_t first = row / per_word;
      const std::int64_t step = rows / per_word;
      for (std::int64_t i = 0; i < k; ++i) to[i] = CodeOf(word_at(first + i * step), slot, bits);
      return;
    }
    case CodeLayout::kSignedBytes:
    case CodeLayout::kE4M3: {
      const std::byte flip{
          static_cast<unsigned char>(parts_.code_layout == CodeLayout::kSignedBytes ? 0x80 : 0)};
      for (std::int64_t i = 0; i < k; ++i) {
        to[i] = std::to_integer<std::uint8_t>(bytes[row * k + i] ^ flip);
      }
      return;
    }
    case CodeLayout::kE2M1Blocks:
      for (std::int64_t i = 0; i < k / 2; ++i) {
        const auto both = std::to_integer<std::uint8_t>(bytes[row * k / 2 + i]);
        to[2 * i] = both & 15;
        to[2 * i + 1] = both >> 4;
      }
      return;
  }
}

void QuantizedTensor::ReadRow(std::int64_t row, std::span<float> out) const {
  QUIRE_CHECK(static_cast<std::int64_t>(out.size()) == parts_.columns);
  std::vector<std::uint8_t> codes(out.size());
  ReadCodes(row, codes);
  const auto groups = static_cast<std::size_t>(NumGroups());
  std::vector<float> scales(groups);
  std::vector<std::int32_t> zeros(IsInteger() ? groups : 0);
  for (std::size_t group = 0; group < groups; ++group) {
    scales[group] = ScaleOf(row, static_cast<std::int64_t>(group));
    if (IsInteger()) zeros[group] = ZeroOf(row, static_cast<std::int64_t>(group));
  }
  if (parts_.group_indices) {
    for (std::size_t i = 0; i < out.size(); ++i) {
      const auto group = static_cast<std::size_t>(
          ElementOf<std::int32_t>(*parts_.group_indices, static_cast<std::int64_t>(i)));
      out[i] = static_cast<float>(codes[i] - zeros[group]) * scales[group];
    }
    return;
  }
  const float* const values =
      parts_.code_layout == CodeLayout::kE4M3 ? kE4M3Values.data() : kE2M1Values.data();
  for (std::size_t group = 0; group < groups; ++group) {
    const std::size_t begin = group * static_cast<std::size_t>(parts_.group);
    const std::size_t end = std::min(out.size(), begin + static_cast<std::size_t>(parts_.group));
    if (IsInteger()) {
      const std::int32_t zero = zeros[group];
      for (std::size_t i = begin; i < end; ++i) {
        out[i] = static_cast<float>(codes[i] - zero) * scales[group];
      }
    } else {
      for (std::size_t i = begin; i < end; ++i) out[i] = values[codes[i]] * scales[group];
    }
  }
}

bool QuantizedTensor::IsFiniteRow(std::int64_t row) const {
  if (parts_.code_layout != CodeLayout::kE4M3) return true;
  constexpr std::uint8_t kNan = 0x7f;
  const std::span<const std::byte> codes = parts_.codes.bytes.subspan(
      static_cast<std::size_t>(row * parts_.columns), static_cast<std::size_t>(parts_.columns));
  return std::none_of(codes.begin(), codes.end(), [](std::byte code) {
    return (std::to_integer<std::uint8_t>(code) & kNan) == kNan;
  });
}

void QuantizedTensor::ReadIntegerRow(std::int64_t row, const QuantizedRow& out) const {
  QUIRE_CHECK(integer_shape_.has_value());
  const QuantizedShape& shape = *integer_shape_;
  std::vector<std::uint8_t> codes(out.q.size());
  ReadCodes(row, codes);
  const bool is_e2m1_blocks = parts_.code_layout == CodeLayout::kE2M1Blocks;
  const int half = shape.has_min ? 0 : 1 << (parts_.bits - 1);
  for (std::size_t i = 0; i < codes.size(); ++i) {
    const std::uint8_t code = codes[order_.empty() ? i : order_[i]];
    out.q[i] = static_cast<std::int8_t>(is_e2m1_blocks ? static_cast<int>(2 * kE2M1Values[code])
                                                       : code - half);
  }
  for (std::size_t i = 0; i < out.scales.size(); ++i) {
    const std::int64_t group = static_cast<std::int64_t>(i) * shape.group / parts_.group;
    out.scales[i] = ScaleOf(row, group) * (is_e2m1_blocks ? 0.5f : 1.0f);
    if (shape.has_min) out.mins[i] = -static_cast<float>(ZeroOf(row, group));
  }
}

void QuantizedTensor::ReadE2M1Row(std::int64_t row, std::span<std::uint8_t> codes,
                                  std::span<float> scales) const {
  QUIRE_CHECK(is_e2m1());
  ReadCodes(row, codes);
  for (std::size_t group = 0; group < scales.size(); ++group) {
    scales[group] = ScaleOf(row, static_cast<std::int64_t>(group));
  }
}

void QuantizedTensor::ReadFp8Row(std::int64_t row, const quire::Fp8Row& out) const {
  QUIRE_CHECK(fp8_shape_.has_value());
  ReadCodes(row, out.codes);
  for (std::size_t group = 0; group < out.scales.size(); ++group) {
    out.scales[group] = ScaleOf(row, static_cast<std::int64_t>(group));
  }
}

}  // namespace quire::formats
