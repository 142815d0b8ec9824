#include "models/config/quantization_config.h"

#include <algorithm>
#include <initializer_list>
#include <optional>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status.h"

namespace quire::models {
namespace {

constexpr char kMethods[] = "(supported: fp8, mxfp4, gptq, awq, compressed-tensors)";
constexpr std::int64_t kMaxGroup = 65536;

using Strings = std::vector<std::string>;

// Adds one warning that names the unknown keys.
void WarnOfUnknownKeys(const ConfigReader& reader, std::initializer_list<absl::string_view> known,
                       std::vector<std::string>* warnings) {
  Strings unknown;
  for (const std::string& key : reader.Keys()) {
    if (key == "quant_method" || std::find(known.begin(), known.end(), key) != known.end()) {
      continue;
    }
    unknown.push_back(key);
  }
  if (unknown.empty()) return;
  warnings->push_back(absl::StrCat("quantization_config has unknown keys, which are ignored: ",
                                   absl::StrJoin(unknown, ", ")));
}

// Checks that a key is absent or has one of the given values.
absl::Status CheckChoice(const ConfigReader& reader, absl::string_view key,
                         std::initializer_list<absl::string_view> choices) {
  QUIRE_ASSIGN_OR_RETURN(const std::optional<std::string> value, reader.OptionalString(key));
  if (!value) return absl::OkStatus();
  const std::string lower = absl::AsciiStrToLower(*value);
  if (std::find(choices.begin(), choices.end(), lower) != choices.end()) return absl::OkStatus();
  return reader.Unsupported(key, absl::StrCat("(supported: ", absl::StrJoin(choices, ", "), ")"));
}

// Refuses a key that changes values, unless it is null, false, an empty list or an empty object.
absl::Status CheckUnset(const ConfigReader& reader, absl::string_view key) {
  if (!reader.Has(key)) return absl::OkStatus();
  const std::string value = reader.ValueText(key);
  if (value == "null" || value == "false" || value == "[]" || value == "{}") {
    return absl::OkStatus();
  }
  return reader.Unsupported(key, "");
}

absl::StatusOr<std::uint32_t> ReadBits(const ConfigReader& reader, absl::string_view key,
                                       std::initializer_list<std::int64_t> supported) {
  QUIRE_ASSIGN_OR_RETURN(const std::optional<std::int64_t> bits,
                         reader.OptionalInteger(key, 1, 64));
  if (!bits) return reader.Error(key, "is missing");
  if (std::find(supported.begin(), supported.end(), *bits) == supported.end()) {
    return reader.Unsupported(key,
                              absl::StrCat("(supported: ", absl::StrJoin(supported, ", "), ")"));
  }
  return static_cast<std::uint32_t>(*bits);
}

// Reads group_size. -1 means one group over all inputs of an output feature.
absl::Status ReadGroup(const ConfigReader& reader, absl::string_view key,
                       formats::StoredQuantization* result) {
  QUIRE_ASSIGN_OR_RETURN(const std::optional<std::int64_t> group,
                         reader.OptionalInteger(key, -1, kMaxGroup));
  if (!group || *group == 0) {
    return reader.Error(key, group ? "is 0, it must be -1 or positive" : "is missing");
  }
  result->scope = *group < 0 ? formats::ScaleScope::kChannel : formats::ScaleScope::kGroup;
  result->group_size = *group < 0 ? 0 : static_cast<std::uint32_t>(*group);
  return absl::OkStatus();
}

absl::Status ReadNotConverted(const ConfigReader& reader, absl::string_view key,
                              formats::StoredQuantization* result) {
  QUIRE_ASSIGN_OR_RETURN(std::optional<Strings> names, reader.OptionalStrings(key));
  if (names) result->not_converted = *std::move(names);
  return absl::OkStatus();
}

absl::Status ReadBlock(const ConfigReader& reader, absl::string_view key,
                       formats::StoredQuantization* result) {
  QUIRE_ASSIGN_OR_RETURN(const std::optional<std::vector<std::int32_t>> block,
                         reader.OptionalIds(key));
  if (!block) return absl::OkStatus();
  if (block->size() != 2 || (*block)[0] < 1 || (*block)[1] < 1) {
    return reader.Error(
        key, absl::StrCat("is ", reader.ValueText(key), ", it must be two positive numbers"));
  }
  result->scope = formats::ScaleScope::kBlock;
  result->block_rows = static_cast<std::uint32_t>((*block)[0]);
  result->block_columns = static_cast<std::uint32_t>((*block)[1]);
  return absl::OkStatus();
}

absl::Status ReadFp8(const ConfigReader& reader, formats::StoredQuantization* result,
                     std::vector<std::string>* warnings) {
  WarnOfUnknownKeys(reader,
                    {"fmt", "activation_scheme", "weight_block_size", "scale_fmt",
                     "modules_to_not_convert", "dequantize"},
                    warnings);
  result->is_fp8 = true;
  QUIRE_RETURN_IF_ERROR(CheckChoice(reader, "fmt", {"e4m3", "float8_e4m3fn"}));
  QUIRE_RETURN_IF_ERROR(CheckChoice(reader, "activation_scheme", {"dynamic", "static"}));
  QUIRE_RETURN_IF_ERROR(CheckChoice(reader, "scale_fmt", {"ue8m0", "float"}));
  QUIRE_RETURN_IF_ERROR(ReadBlock(reader, "weight_block_size", result));
  return ReadNotConverted(reader, "modules_to_not_convert", result);
}

absl::Status ReadMxfp4(const ConfigReader& reader, formats::StoredQuantization* result,
                       std::vector<std::string>* warnings) {
  WarnOfUnknownKeys(reader, {"modules_to_not_convert", "dequantize"}, warnings);
  return ReadNotConverted(reader, "modules_to_not_convert", result);
}

// Checks `dynamic`, which maps patterns of module names to other widths and group sizes. Only
// patterns that begin with "-:" are supported. They exclude modules from quantization.
absl::Status CheckDynamic(const ConfigReader& reader) {
  QUIRE_ASSIGN_OR_RETURN(const std::optional<ConfigReader> dynamic,
                         reader.OptionalObject("dynamic"));
  if (!dynamic) return absl::OkStatus();
  for (const std::string& pattern : dynamic->Keys()) {
    if (!absl::StartsWith(pattern, "-:")) {
      return dynamic->Unsupported(pattern, "(supported: one width and group size for all modules)");
    }
  }
  return absl::OkStatus();
}

absl::Status ReadGptq(const ConfigReader& reader, formats::StoredQuantization* result,
                      std::vector<std::string>* warnings) {
  WarnOfUnknownKeys(reader,
                    {"bits",
                     "group_size",
                     "desc_act",
                     "sym",
                     "checkpoint_format",
                     "format",
                     "is_marlin_format",
                     "pack_dtype",
                     "dynamic",
                     "damp_percent",
                     "damp_auto_increment",
                     "static_groups",
                     "true_sequential",
                     "model_name_or_path",
                     "model_file_base_name",
                     "tokenizer",
                     "dataset",
                     "batch_size",
                     "block_name_to_quantize",
                     "cache_block_outputs",
                     "max_input_length",
                     "modules_in_block_to_quantize",
                     "module_name_preceding_first_block",
                     "pad_token_id",
                     "use_cuda_fp16",
                     "use_exllama",
                     "exllama_config",
                     "disable_exllama",
                     "quantizer",
                     "meta",
                     "lm_head",
                     "backend",
                     "mse",
                     "act_group_aware",
                     "hyb_act"},
                    warnings);
  QUIRE_ASSIGN_OR_RETURN(result->bits, ReadBits(reader, "bits", {4, 8}));
  QUIRE_RETURN_IF_ERROR(ReadGroup(reader, "group_size", result));
  QUIRE_RETURN_IF_ERROR(CheckDynamic(reader));
  QUIRE_RETURN_IF_ERROR(CheckUnset(reader, "is_marlin_format"));
  QUIRE_RETURN_IF_ERROR(CheckChoice(reader, "pack_dtype", {"int32"}));
  QUIRE_RETURN_IF_ERROR(CheckChoice(reader, "checkpoint_format", {"gptq", "gptq_v2"}));
  QUIRE_RETURN_IF_ERROR(CheckChoice(reader, "format", {"gptq", "gptq_v2"}));
  QUIRE_ASSIGN_OR_RETURN(const std::optional<std::string> format,
                         reader.OptionalString("checkpoint_format"));
  QUIRE_ASSIGN_OR_RETURN(const std::optional<std::string> alias, reader.OptionalString("format"));
  if (format && alias && *format != *alias) {
    return reader.Error("checkpoint_format",
                        absl::StrCat("is \"", *format, "\", but format is \"", *alias, "\""));
  }
  result->has_zeros = true;
  result->zeros_minus_one = (format ? *format : alias.value_or("gptq")) == "gptq";
  QUIRE_ASSIGN_OR_RETURN(result->requires_symmetric_zeros, reader.BoolOr("sym", false));
  QUIRE_ASSIGN_OR_RETURN(result->needs_order, reader.BoolOr("desc_act", false));
  return absl::OkStatus();
}

absl::Status ReadAwq(const ConfigReader& reader, formats::StoredQuantization* result,
                     std::vector<std::string>* warnings) {
  WarnOfUnknownKeys(reader,
                    {"bits", "w_bit", "group_size", "q_group_size", "zero_point", "version",
                     "backend", "modules_to_not_convert", "do_fuse", "modules_to_fuse",
                     "fuse_max_seq_len", "exllama_config"},
                    warnings);
  QUIRE_ASSIGN_OR_RETURN(result->bits,
                         ReadBits(reader, reader.Has("bits") ? "bits" : "w_bit", {4}));
  QUIRE_RETURN_IF_ERROR(
      ReadGroup(reader, reader.Has("group_size") ? "group_size" : "q_group_size", result));
  QUIRE_ASSIGN_OR_RETURN(const bool zero_point, reader.BoolOr("zero_point", true));
  if (!zero_point) return reader.Unsupported("zero_point", "(supported: true)");
  QUIRE_RETURN_IF_ERROR(CheckChoice(reader, "version", {"gemm"}));
  QUIRE_RETURN_IF_ERROR(CheckChoice(reader, "backend", {"autoawq"}));
  result->has_zeros = true;
  return ReadNotConverted(reader, "modules_to_not_convert", result);
}

absl::Status ReadScope(const ConfigReader& weights, formats::StoredQuantization* result) {
  QUIRE_RETURN_IF_ERROR(CheckChoice(weights, "strategy", {"tensor", "channel", "group", "block"}));
  QUIRE_ASSIGN_OR_RETURN(const std::optional<std::string> strategy,
                         weights.OptionalString("strategy"));
  if (!strategy) return weights.Error("strategy", "is missing");
  if (*strategy == "tensor") {
    result->scope = formats::ScaleScope::kTensor;
  } else if (*strategy == "channel") {
    result->scope = formats::ScaleScope::kChannel;
  } else if (*strategy == "group") {
    QUIRE_RETURN_IF_ERROR(ReadGroup(weights, "group_size", result));
  } else if (!weights.Has("block_structure") || weights.IsNull("block_structure")) {
    return weights.Error("block_structure", "is missing");
  } else {
    QUIRE_RETURN_IF_ERROR(ReadBlock(weights, "block_structure", result));
  }
  // No known program writes integers with a scale per tensor or block, or fp8 with groups.
  const bool fits = result->is_fp8 ? result->scope != formats::ScaleScope::kGroup
                                   : result->scope == formats::ScaleScope::kChannel ||
                                         result->scope == formats::ScaleScope::kGroup;
  if (fits) return absl::OkStatus();
  return weights.Unsupported("strategy", result->is_fp8
                                             ? "with type float (supported: tensor, channel, block)"
                                             : "with type int (supported: channel, group)");
}

absl::Status ReadCompressedWeights(const ConfigReader& group, absl::string_view format,
                                   formats::StoredQuantization* result) {
  QUIRE_RETURN_IF_ERROR(CheckUnset(group, "output_activations"));
  QUIRE_ASSIGN_OR_RETURN(const std::optional<ConfigReader> inputs,
                         group.OptionalObject("input_activations"));
  if (inputs) QUIRE_RETURN_IF_ERROR(ReadBits(*inputs, "num_bits", {8}).status());
  QUIRE_ASSIGN_OR_RETURN(const std::optional<ConfigReader> weights,
                         group.OptionalObject("weights"));
  if (!weights) return group.Error("weights", "is missing");
  QUIRE_RETURN_IF_ERROR(CheckChoice(*weights, "type", {"int", "float"}));
  QUIRE_ASSIGN_OR_RETURN(const std::optional<std::string> type, weights->OptionalString("type"));
  result->is_fp8 = type.value_or("int") == "float";
  result->is_packed = format == "pack-quantized";
  const bool only_8 = result->is_fp8 || !result->is_packed;
  QUIRE_ASSIGN_OR_RETURN(result->bits, only_8 ? ReadBits(*weights, "num_bits", {8})
                                              : ReadBits(*weights, "num_bits", {4, 8}));
  const bool wants_fp8 = format == "float-quantized";
  if (result->is_fp8 != wants_fp8 && format != "naive-quantized") {
    return weights->Error("type", absl::StrCat("is \"", type.value_or("int"),
                                               "\", which does not fit format ", format));
  }
  QUIRE_RETURN_IF_ERROR(CheckUnset(*weights, "dynamic"));
  QUIRE_RETURN_IF_ERROR(
      CheckChoice(*weights, "actorder", {"group", "weight", "dynamic", "static"}));
  QUIRE_ASSIGN_OR_RETURN(const std::optional<std::string> order,
                         weights->OptionalString("actorder"));
  const std::string lower = absl::AsciiStrToLower(order.value_or(""));
  result->needs_order = lower == "group" || lower == "dynamic";
  QUIRE_RETURN_IF_ERROR(ReadScope(*weights, result));
  QUIRE_ASSIGN_OR_RETURN(const bool is_symmetric, weights->BoolOr("symmetric", true));
  result->has_zeros = !is_symmetric;
  if (result->has_zeros && result->is_fp8) {
    return weights->Unsupported("symmetric", "with type float");
  }
  return absl::OkStatus();
}

absl::Status ReadCompressedTensors(const ConfigReader& reader, formats::StoredQuantization* result,
                                   std::vector<std::string>* warnings) {
  WarnOfUnknownKeys(reader,
                    {"format", "config_groups", "ignore", "kv_cache_scheme", "quantization_status",
                     "global_compression_ratio", "sparsity_config", "transform_config", "version"},
                    warnings);
  QUIRE_RETURN_IF_ERROR(CheckChoice(
      reader, "format", {"pack-quantized", "int-quantized", "float-quantized", "naive-quantized"}));
  QUIRE_ASSIGN_OR_RETURN(const std::optional<std::string> format, reader.OptionalString("format"));
  if (!format) return reader.Error("format", "is missing");
  QUIRE_RETURN_IF_ERROR(CheckChoice(reader, "quantization_status", {"compressed", "frozen"}));
  QUIRE_RETURN_IF_ERROR(CheckUnset(reader, "kv_cache_scheme"));
  QUIRE_RETURN_IF_ERROR(CheckUnset(reader, "transform_config"));
  QUIRE_ASSIGN_OR_RETURN(const std::optional<ConfigReader> sparsity,
                         reader.OptionalObject("sparsity_config"));
  if (sparsity) QUIRE_RETURN_IF_ERROR(CheckChoice(*sparsity, "format", {"dense"}));
  QUIRE_ASSIGN_OR_RETURN(const std::optional<ConfigReader> groups,
                         reader.OptionalObject("config_groups"));
  if (!groups) return reader.Error("config_groups", "is missing");
  const Strings names = groups->Keys();
  if (names.size() != 1) {
    return reader.Unsupported("config_groups",
                              absl::StrCat("with ", names.size(), " groups (supported: 1)"));
  }
  QUIRE_ASSIGN_OR_RETURN(const std::optional<ConfigReader> group, groups->OptionalObject(names[0]));
  if (!group) return groups->Error(names[0], "is null");
  QUIRE_RETURN_IF_ERROR(group->OptionalStrings("targets").status());
  QUIRE_RETURN_IF_ERROR(CheckChoice(*group, "format", {absl::AsciiStrToLower(*format)}));
  QUIRE_RETURN_IF_ERROR(ReadCompressedWeights(*group, absl::AsciiStrToLower(*format), result));
  return ReadNotConverted(reader, "ignore", result);
}

}  // namespace

absl::StatusOr<formats::StoredQuantization> ReadStoredQuantization(
    const ConfigReader& reader, std::vector<std::string>* warnings) {
  QUIRE_RETURN_IF_ERROR(CheckUnset(reader, "compression_config"));
  formats::StoredQuantization result;
  QUIRE_ASSIGN_OR_RETURN(const std::optional<ConfigReader> object,
                         reader.OptionalObject("quantization_config"));
  if (!object) return result;
  QUIRE_ASSIGN_OR_RETURN(const std::optional<std::string> method,
                         object->OptionalString("quant_method"));
  if (!method) return object->Error("quant_method", "is missing");
  constexpr struct {
    formats::StoredMethod method;
    absl::Status (*read)(const ConfigReader&, formats::StoredQuantization*,
                         std::vector<std::string>*);
  } kReaders[] = {{formats::StoredMethod::kFp8, ReadFp8},
                  {formats::StoredMethod::kMxfp4, ReadMxfp4},
                  {formats::StoredMethod::kGptq, ReadGptq},
                  {formats::StoredMethod::kAwq, ReadAwq},
                  {formats::StoredMethod::kCompressedTensors, ReadCompressedTensors}};
  for (const auto& candidate : kReaders) {
    if (formats::StoredMethodName(candidate.method) != *method) continue;
    result.method = candidate.method;
    QUIRE_RETURN_IF_ERROR(candidate.read(*object, &result, warnings));
    return result;
  }
  return object->Unsupported("quant_method", kMethods);
}

}  // namespace quire::models
