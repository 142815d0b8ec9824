#include "models/weights/join_quantized.h"

#include <algorithm>
#include <cstring>
#include <initializer_list>
#include <iterator>
#include <optional>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "base/status.h"
#include "formats/tensors/quantized_tensor.h"

namespace quire::models {
namespace {

constexpr std::int64_t kE2M1Group = 32;
constexpr std::int64_t kE2M1Bytes = kE2M1Group / 2;

using Shape = std::vector<std::int64_t>;

template <typename... What>
absl::Status Refuse(const formats::StoredTensor& tensor, const What&... what) {
  return absl::InvalidArgumentError(
      absl::StrCat(tensor.file, ": tensor ", tensor.name, ": ", what...));
}

std::int64_t CeilOf(std::int64_t a, std::int64_t b) {
  return (a + b - 1) / b;
}

absl::Status CheckShape(const formats::StoredTensor& tensor, const Shape& shape,
                        absl::string_view requirement) {
  if (tensor.shape == shape) return absl::OkStatus();
  return Refuse(tensor, "shape is ", tensor.ShapeText(), ", ", requirement, " requires [",
                absl::StrJoin(shape, ", "), "]");
}

absl::Status CheckType(const formats::StoredTensor& tensor,
                       std::initializer_list<absl::string_view> types) {
  if (std::find(types.begin(), types.end(), tensor.type) != types.end()) return absl::OkStatus();
  return absl::UnimplementedError(
      absl::StrCat(tensor.file, ": tensor ", tensor.name, ": dtype ", tensor.type,
                   " is not supported (supported: ", absl::StrJoin(types, ", "), ")"));
}

// Returns the suffix of the tensor with the quantized weights of a matrix.
absl::string_view CodesSuffix(const formats::StoredQuantization& quantization) {
  switch (quantization.method) {
    case formats::StoredMethod::kGptq:
    case formats::StoredMethod::kAwq:
      return ".qweight";
    case formats::StoredMethod::kCompressedTensors:
      return quantization.is_packed ? ".weight_packed" : ".weight";
    case formats::StoredMethod::kMxfp4:
      return "_blocks";
    default:
      return ".weight";
  }
}

bool IsQuantizedWeights(const formats::StoredQuantization& quantization,
                        const formats::StoredTensor& tensor) {
  if (!absl::EndsWith(tensor.name, CodesSuffix(quantization))) return false;
  if (quantization.method == formats::StoredMethod::kMxfp4) return tensor.dtype == DType::kU8;
  const bool is_plain_name = CodesSuffix(quantization) == ".weight";
  return !is_plain_name || tensor.dtype == DType::kF8E4M3 || tensor.dtype == DType::kI8;
}

// Suffixes of parts of quantized matrices.
constexpr absl::string_view kPartSuffixes[] = {
    ".qweight",       ".qzeros",       ".scales",           ".g_idx",
    ".weight_packed", ".weight_scale", ".weight_scale_inv", ".weight_zero_point",
    ".weight_shape",  ".weight_g_idx", "_blocks",           "_scales"};
// Suffixes of the parameters of static activation quantization, which are not used.
constexpr absl::string_view kUnusedSuffixes[] = {".input_scale", ".activation_scale",
                                                 ".input_zero_point"};

// Assembles the quantized matrices of a checkpoint.
class Joiner {
 public:
  Joiner(const formats::StoredQuantization& quantization,
         std::vector<formats::StoredTensor>* tensors)
      : quantization_(quantization), tensors_(*tensors) {
    for (std::size_t i = 0; i < tensors_.size(); ++i) by_name_.emplace(tensors_[i].name, i);
  }

  absl::Status Join(std::vector<std::string>* warnings) {
    std::vector<formats::StoredTensor> joined;
    for (const formats::StoredTensor& tensor : tensors_) {
      if (!IsQuantizedWeights(quantization_, tensor)) continue;
      QUIRE_ASSIGN_OR_RETURN(formats::StoredTensor matrix, JoinMatrix(tensor));
      joined.push_back(std::move(matrix));
    }
    QUIRE_RETURN_IF_ERROR(CheckNotConverted(joined, warnings));
    if (joined.empty()) {
      warnings->push_back(absl::StrCat("quantization_config is ",
                                       formats::StoredTypeName(quantization_),
                                       ", but no tensor of the checkpoint has that format"));
    }
    if (num_activation_scales_ > 0) {
      warnings->push_back(absl::StrCat(
          num_activation_scales_, " scales of activations, such as ", example_activation_scale_,
          ", are ignored: static activation quantization is not supported"));
    }
    std::vector<formats::StoredTensor> rest;
    for (std::size_t i = 0; i < tensors_.size(); ++i) {
      if (!taken_tensors_.contains(i)) rest.push_back(std::move(tensors_[i]));
    }
    std::move(joined.begin(), joined.end(), std::back_inserter(rest));
    tensors_ = std::move(rest);
    return absl::OkStatus();
  }

 private:
  // Returns null if there is no such tensor.
  const formats::StoredTensor* Find(const std::string& name) const {
    const auto found = by_name_.find(name);
    return found == by_name_.end() ? nullptr : &tensors_[found->second];
  }
  void Take(const formats::StoredTensor& tensor) {
    taken_tensors_.insert(static_cast<std::size_t>(&tensor - tensors_.data()));
  }
  std::optional<formats::StoredTensor> TakeOptional(const std::string& name) {
    const formats::StoredTensor* const tensor = Find(name);
    if (tensor == nullptr) return std::nullopt;
    Take(*tensor);
    return *tensor;
  }
  absl::StatusOr<formats::StoredTensor> TakePart(const formats::StoredTensor& codes,
                                                 const std::string& name) {
    const std::optional<formats::StoredTensor> part = TakeOptional(name);
    if (!part) return Refuse(codes, name, " is missing");
    return *part;
  }

  absl::StatusOr<formats::StoredTensor> JoinMatrix(const formats::StoredTensor& codes);
  // Each function finds the parts of the matrix named `stem`. The matrix's quantized weights are
  // the tensor named `stem` + CodesSuffix.
  absl::Status JoinGptq(const std::string& stem, formats::QuantizedParts* parts);
  absl::Status JoinPacked(const std::string& stem, formats::QuantizedParts* parts);
  absl::Status JoinBytes(const std::string& stem, formats::QuantizedParts* parts);
  absl::Status JoinE2M1(const std::string& stem, formats::QuantizedParts* parts);
  // Sets the groups of the scales and checks their shape. Scales are [outputs, groups] if
  // `outputs_first` is true, else [groups, outputs].
  absl::Status SetScope(formats::QuantizedParts* parts, bool outputs_first) const;
  absl::Status SetCompressedZeros(const std::string& stem, formats::QuantizedParts* parts);
  absl::Status SetGroupIndices(const std::string& name, formats::QuantizedParts* parts);
  absl::Status CheckNotConverted(const std::vector<formats::StoredTensor>& joined,
                                 std::vector<std::string>* warnings) const;

  const formats::StoredQuantization& quantization_;
  std::vector<formats::StoredTensor>& tensors_;
  absl::flat_hash_map<std::string, std::size_t> by_name_;
  absl::flat_hash_set<std::size_t> taken_tensors_;
  std::size_t num_activation_scales_ = 0;
  std::string example_activation_scale_;
};

absl::StatusOr<formats::StoredTensor> Joiner::JoinMatrix(const formats::StoredTensor& codes) {
  const std::string stem(absl::StripSuffix(codes.name, CodesSuffix(quantization_)));
  formats::QuantizedParts parts;
  parts.codes = codes;
  Take(codes);
  absl::Status status;
  const bool is_e2m1 = quantization_.method == formats::StoredMethod::kMxfp4;
  if (codes.num_elements() == 0) return Refuse(codes, "shape ", codes.ShapeText(), " is empty");
  if (is_e2m1) {
    status = JoinE2M1(stem, &parts);
  } else if (codes.shape.size() != 2) {
    status = Refuse(codes, "shape is ", codes.ShapeText(), ", a quantized matrix has 2 dimensions");
  } else if (quantization_.method == formats::StoredMethod::kGptq ||
             quantization_.method == formats::StoredMethod::kAwq) {
    status = JoinGptq(stem, &parts);
  } else {
    status = quantization_.is_packed ? JoinPacked(stem, &parts) : JoinBytes(stem, &parts);
  }
  QUIRE_RETURN_IF_ERROR(status);
  for (const absl::string_view suffix : kUnusedSuffixes) {
    std::optional<formats::StoredTensor> unused = TakeOptional(absl::StrCat(stem, suffix));
    if (!unused) continue;
    ++num_activation_scales_;
    example_activation_scale_ = unused->name;
    parts.unused.push_back(*std::move(unused));
  }
  formats::StoredTensor matrix = codes;
  matrix.name = is_e2m1 ? stem : absl::StrCat(stem, ".weight");
  if (matrix.name != codes.name && Find(matrix.name) != nullptr) {
    return Refuse(codes, "conflicts with tensor ", matrix.name, ", the same matrix unquantized");
  }
  matrix.type = formats::StoredTypeName(quantization_);
  matrix.dtype = DType::kInvalid;
  matrix.shape = {parts.rows, parts.columns};
  if (is_e2m1) {
    matrix.shape.assign(codes.shape.begin(), codes.shape.end() - 2);
    matrix.shape.push_back(parts.columns);
  }
  QUIRE_ASSIGN_OR_RETURN(matrix.quantized, formats::QuantizedTensor::Create(std::move(parts)));
  return matrix;
}

absl::Status Joiner::SetScope(formats::QuantizedParts* parts, bool outputs_first) const {
  const formats::StoredTensor& scales = parts->scales;
  if (quantization_.scope == formats::ScaleScope::kTensor) {
    parts->group = parts->columns;
    if (scales.num_elements() == 1) return absl::OkStatus();
    return CheckShape(scales, {1}, "one scale for the matrix");
  }
  std::int64_t groups = 1;
  std::int64_t rows = parts->rows;
  parts->group = parts->columns;
  std::string requirement = "one scale for each output";
  if (quantization_.scope == formats::ScaleScope::kGroup) {
    parts->group = quantization_.group_size;
    if (parts->columns % parts->group != 0) {
      return Refuse(parts->codes, "has ", parts->columns, " inputs, which group_size ",
                    parts->group, " does not divide");
    }
    groups = parts->columns / parts->group;
    requirement = absl::StrCat("group_size ", parts->group);
  } else if (quantization_.scope == formats::ScaleScope::kBlock) {
    parts->rows_per_scale = quantization_.block_rows;
    parts->group = quantization_.block_columns;
    rows = CeilOf(parts->rows, parts->rows_per_scale);
    groups = CeilOf(parts->columns, parts->group);
    requirement = absl::StrCat("weight_block_size [", quantization_.block_rows, ", ",
                               quantization_.block_columns, "]");
  }
  absl::StrAppend(&requirement, " of a matrix with ", parts->rows, " outputs and ", parts->columns,
                  " inputs");
  parts->row_stride = outputs_first ? groups : 1;
  parts->group_stride = outputs_first ? 1 : rows;
  const bool is_vector = outputs_first && quantization_.scope == formats::ScaleScope::kChannel &&
                         scales.shape == Shape{rows};
  if (is_vector) return absl::OkStatus();
  return CheckShape(scales, outputs_first ? Shape{rows, groups} : Shape{groups, rows}, requirement);
}

absl::Status Joiner::SetGroupIndices(const std::string& name, formats::QuantizedParts* parts) {
  parts->group_indices = TakeOptional(name);
  if (!parts->group_indices) {
    if (!quantization_.needs_order) return absl::OkStatus();
    return Refuse(parts->codes, name, " is missing");
  }
  QUIRE_RETURN_IF_ERROR(CheckType(*parts->group_indices, {"I32"}));
  return CheckShape(*parts->group_indices, {parts->columns}, "a group for each input");
}

absl::Status Joiner::JoinGptq(const std::string& stem, formats::QuantizedParts* parts) {
  const bool is_awq = quantization_.method == formats::StoredMethod::kAwq;
  const formats::StoredTensor& codes = parts->codes;
  const std::int64_t per_word = 32 / quantization_.bits;
  QUIRE_RETURN_IF_ERROR(CheckType(codes, {"I32"}));
  QUIRE_ASSIGN_OR_RETURN(parts->scales, TakePart(codes, stem + ".scales"));
  QUIRE_ASSIGN_OR_RETURN(parts->zeros, TakePart(codes, stem + ".qzeros"));
  QUIRE_RETURN_IF_ERROR(CheckType(parts->scales, {"F16", "BF16", "F32"}));
  QUIRE_RETURN_IF_ERROR(CheckType(*parts->zeros, {"I32"}));
  parts->bits = quantization_.bits;
  parts->rows = codes.shape[1] * (is_awq ? per_word : 1);
  parts->columns = codes.shape[0] * (is_awq ? 1 : per_word);
  parts->code_layout =
      is_awq ? formats::CodeLayout::kWordsOfOutputs : formats::CodeLayout::kWordsOfInputs;
  parts->zero_layout = is_awq ? formats::ZeroLayout::kWordsOfOutputsInterleaved
                              : formats::ZeroLayout::kWordsOfOutputs;
  parts->zero_offset = quantization_.zeros_minus_one ? 1 : 0;
  parts->requires_symmetric_zeros = quantization_.requires_symmetric_zeros;
  QUIRE_RETURN_IF_ERROR(SetScope(parts, /*outputs_first=*/false));
  if (parts->rows % per_word != 0) {
    return Refuse(codes, "has ", parts->rows, " outputs, but zero points are packed in words of ",
                  per_word, "; the number of outputs must be a multiple of ", per_word);
  }
  const std::int64_t groups = parts->columns / parts->group;
  QUIRE_RETURN_IF_ERROR(CheckShape(*parts->zeros, {groups, parts->rows / per_word},
                                   absl::StrCat("the shape of ", parts->scales.name)));
  return SetGroupIndices(stem + ".g_idx", parts);
}

absl::Status Joiner::SetCompressedZeros(const std::string& stem, formats::QuantizedParts* parts) {
  const std::string name = stem + ".weight_zero_point";
  if (!quantization_.has_zeros) {
    std::optional<formats::StoredTensor> zeros = TakeOptional(name);
    if (!zeros) return absl::OkStatus();
    const bool all_zero = std::all_of(zeros->bytes.begin(), zeros->bytes.end(),
                                      [](std::byte byte) { return byte == std::byte{0}; });
    if (!all_zero) return Refuse(*zeros, "has values other than 0, but weights are symmetric");
    parts->unused.push_back(*std::move(zeros));
    return absl::OkStatus();
  }
  QUIRE_ASSIGN_OR_RETURN(parts->zeros, TakePart(parts->codes, name));
  const std::int64_t groups = parts->columns / parts->group;
  if (!quantization_.is_packed) {
    parts->zero_layout = formats::ZeroLayout::kSignedBytes;
    QUIRE_RETURN_IF_ERROR(CheckType(*parts->zeros, {"I8"}));
    return CheckShape(*parts->zeros, {parts->rows, groups}, "the shape of its scales");
  }
  parts->zero_layout = formats::ZeroLayout::kWordsOfOutputsOutputMajor;
  QUIRE_RETURN_IF_ERROR(CheckType(*parts->zeros, {"I32"}));
  return CheckShape(*parts->zeros, {CeilOf(parts->rows, 32 / parts->bits), groups},
                    "the shape of its scales");
}

absl::Status Joiner::JoinPacked(const std::string& stem, formats::QuantizedParts* parts) {
  const formats::StoredTensor& codes = parts->codes;
  QUIRE_RETURN_IF_ERROR(CheckType(codes, {"I32"}));
  QUIRE_ASSIGN_OR_RETURN(parts->scales, TakePart(codes, stem + ".weight_scale"));
  QUIRE_ASSIGN_OR_RETURN(const formats::StoredTensor shape,
                         TakePart(codes, stem + ".weight_shape"));
  QUIRE_RETURN_IF_ERROR(CheckType(parts->scales, {"F16", "BF16", "F32"}));
  QUIRE_RETURN_IF_ERROR(CheckType(shape, {"I64", "I32"}));
  QUIRE_RETURN_IF_ERROR(CheckShape(shape, {2}, "one value for each dimension of the matrix"));
  const auto extent = [&](std::size_t i) {
    const bool is_wide = shape.dtype == DType::kI64;
    std::int64_t value = 0;
    std::int32_t narrow = 0;
    if (is_wide) {
      std::memcpy(&value, shape.bytes.data() + i * sizeof(value), sizeof(value));
      return value;
    }
    std::memcpy(&narrow, shape.bytes.data() + i * sizeof(narrow), sizeof(narrow));
    return std::int64_t{narrow};
  };
  const std::int64_t per_word = 32 / quantization_.bits;
  parts->bits = quantization_.bits;
  parts->rows = codes.shape[0];
  parts->columns = extent(1);
  if (extent(0) != parts->rows || parts->columns < 1 ||
      parts->columns > codes.shape[1] * per_word ||
      CeilOf(parts->columns, per_word) != codes.shape[1]) {
    return Refuse(shape, "is [", extent(0), ", ", extent(1), "], which does not match ", codes.name,
                  " of shape ", codes.ShapeText());
  }
  parts->code_layout = formats::CodeLayout::kWordsOfInputsOutputMajor;
  parts->unused.push_back(shape);
  QUIRE_RETURN_IF_ERROR(SetScope(parts, /*outputs_first=*/true));
  QUIRE_RETURN_IF_ERROR(SetCompressedZeros(stem, parts));
  return SetGroupIndices(stem + ".weight_g_idx", parts);
}

absl::Status Joiner::JoinBytes(const std::string& stem, formats::QuantizedParts* parts) {
  const formats::StoredTensor& codes = parts->codes;
  QUIRE_RETURN_IF_ERROR(CheckType(
      codes, {quantization_.is_fp8 ? absl::string_view("F8_E4M3") : absl::string_view("I8")}));
  const std::string inverse = stem + ".weight_scale_inv";
  const std::string plain = stem + ".weight_scale";
  const bool is_inverse =
      quantization_.method == formats::StoredMethod::kFp8 && Find(plain) == nullptr;
  QUIRE_ASSIGN_OR_RETURN(parts->scales, TakePart(codes, is_inverse ? inverse : plain));
  if (quantization_.is_fp8) {
    QUIRE_RETURN_IF_ERROR(CheckType(parts->scales, {"F32", "BF16", "F16", "F8_E8M0", "U8"}));
  } else {
    QUIRE_RETURN_IF_ERROR(CheckType(parts->scales, {"F32", "BF16", "F16"}));
  }
  parts->bits = 8;
  parts->rows = codes.shape[0];
  parts->columns = codes.shape[1];
  parts->code_layout =
      quantization_.is_fp8 ? formats::CodeLayout::kE4M3 : formats::CodeLayout::kSignedBytes;
  QUIRE_RETURN_IF_ERROR(SetScope(parts, /*outputs_first=*/true));
  if (quantization_.is_fp8) return absl::OkStatus();
  QUIRE_RETURN_IF_ERROR(SetCompressedZeros(stem, parts));
  return SetGroupIndices(stem + ".weight_g_idx", parts);
}

absl::Status Joiner::JoinE2M1(const std::string& stem, formats::QuantizedParts* parts) {
  const formats::StoredTensor& codes = parts->codes;
  QUIRE_ASSIGN_OR_RETURN(parts->scales, TakePart(codes, stem + "_scales"));
  QUIRE_RETURN_IF_ERROR(CheckType(parts->scales, {"U8", "F8_E8M0"}));
  if (codes.shape.size() < 3 || codes.shape.back() != kE2M1Bytes) {
    return Refuse(codes, "shape is ", codes.ShapeText(),
                  ", mxfp4 requires [..., outputs, inputs / ", kE2M1Group, ", ", kE2M1Bytes, "]");
  }
  const Shape groups(codes.shape.begin(), codes.shape.end() - 1);
  QUIRE_RETURN_IF_ERROR(CheckShape(parts->scales, groups, codes.name));
  parts->bits = 4;
  parts->columns = groups.back() * kE2M1Group;
  parts->rows = parts->scales.num_elements() / groups.back();
  parts->group = kE2M1Group;
  parts->row_stride = groups.back();
  parts->group_stride = 1;
  parts->code_layout = formats::CodeLayout::kE2M1Blocks;
  return absl::OkStatus();
}

// True if `module` is `entry`, is inside `entry`, or ends with `entry`.
bool IsNamedBy(absl::string_view module, absl::string_view entry) {
  return module == entry || absl::StartsWith(module, absl::StrCat(entry, ".")) ||
         absl::EndsWith(module, absl::StrCat(".", entry));
}

// Entries that are patterns are not checked: the tensors determine what is quantized.
bool IsPattern(absl::string_view entry) {
  return std::any_of(entry.begin(), entry.end(), [](char c) {
    return absl::string_view("*?+^$[](){}|\\:").find(c) != absl::string_view::npos;
  });
}

absl::Status Joiner::CheckNotConverted(const std::vector<formats::StoredTensor>& joined,
                                       std::vector<std::string>* warnings) const {
  std::vector<absl::string_view> absent;
  for (const std::string& entry : quantization_.not_converted) {
    if (entry.empty() || IsPattern(entry)) continue;
    for (const formats::StoredTensor& matrix : joined) {
      const absl::string_view module = absl::StripSuffix(matrix.name, ".weight");
      if (!IsNamedBy(module, entry)) continue;
      return Refuse(matrix.quantized->parts().codes, "is quantized, but quantization_config ",
                    "excludes ", entry);
    }
    // A tied head has no tensors.
    const bool is_there = std::any_of(tensors_.begin(), tensors_.end(), [&](const auto& tensor) {
      return IsNamedBy(tensor.name.substr(0, tensor.name.rfind('.')), entry);
    });
    if (!is_there && entry != "lm_head") absent.push_back(entry);
  }
  if (!absent.empty()) {
    warnings->push_back(
        absl::StrCat("quantization_config excludes modules that the checkpoint does ",
                     "not have: ", absl::StrJoin(absent, ", ")));
  }
  return absl::OkStatus();
}

// Refuses parts without quantized weights, and quantized tensors without quantization_config.
absl::Status CheckLeftOver(const formats::StoredQuantization& quantization,
                           const std::vector<formats::StoredTensor>& tensors) {
  for (const formats::StoredTensor& tensor : tensors) {
    for (const absl::string_view suffix : kPartSuffixes) {
      if (tensor.quantized != nullptr || !absl::EndsWith(tensor.name, suffix)) continue;
      if (quantization.method == formats::StoredMethod::kNone) {
        return Refuse(tensor, "is part of a quantized matrix, but config.json has no ",
                      "quantization_config");
      }
      return Refuse(tensor, "belongs to no matrix: with quantization_config ",
                    formats::StoredTypeName(quantization),
                    ", each quantized matrix requires a tensor named NAME",
                    CodesSuffix(quantization));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status JoinQuantized(const formats::StoredQuantization& quantization,
                           std::vector<formats::StoredTensor>* tensors,
                           std::vector<std::string>* warnings) {
  if (quantization.method != formats::StoredMethod::kNone) {
    QUIRE_RETURN_IF_ERROR(Joiner(quantization, tensors).Join(warnings));
  }
  return CheckLeftOver(quantization, *tensors);
}

}  // namespace quire::models
