#include "models/config/hybrid_config.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "base/status.h"
#include "models/config/config_reader.h"
#include "models/config/family.h"

namespace quire::models {
namespace {

constexpr std::uint32_t kMaxStateHeads = 1u << 16;

absl::StatusOr<LayerBranch> BranchOf(const ConfigReader& reader, const Family& family,
                                     absl::string_view key, std::size_t index,
                                     absl::string_view name) {
  for (const LayerTypeName& type : family.layer_types) {
    if (type.name == name) return type.branch;
  }
  return absl::UnimplementedError(absl::StrCat(
      reader.label(), ": ", key, "[", index, "] \"", name, "\" is not supported by ", family.name,
      " (supported: ",
      absl::StrJoin(
          family.layer_types, ", ",
          [](std::string* out, const LayerTypeName& type) { absl::StrAppend(out, type.name); }),
      ")"));
}

// Returns the layers, or an error if none has attention.
absl::StatusOr<std::vector<LayerBranch>> CheckAttention(const ConfigReader& reader,
                                                        absl::string_view key,
                                                        std::vector<LayerBranch> layers) {
  if (std::find(layers.begin(), layers.end(), LayerBranch::kAttention) != layers.end()) {
    return layers;
  }
  return reader.Error(key, "gives 0 layers with full attention, there must be at least 1");
}

// Every full_attention_interval-th layer has attention.
absl::StatusOr<std::vector<LayerBranch>> ReadInterval(const ConfigReader& reader,
                                                      std::uint32_t num_layers) {
  constexpr absl::string_view kKey = "full_attention_interval";
  QUIRE_ASSIGN_OR_RETURN(const std::uint32_t interval, reader.CountOr(kKey, 1, kMaxLayers, 4));
  std::vector<LayerBranch> layers;
  for (std::uint32_t i = 0; i < num_layers; ++i) {
    const bool has_attention = (i + 1) % interval == 0;
    layers.push_back(has_attention ? LayerBranch::kAttention : LayerBranch::kRecurrent);
  }
  return CheckAttention(reader, kKey, std::move(layers));
}

// Reads hybrid_override_pattern, which has a character for each layer.
absl::StatusOr<std::vector<LayerBranch>> ReadPattern(const ConfigReader& reader,
                                                     std::uint32_t num_layers) {
  constexpr absl::string_view kKey = "hybrid_override_pattern";
  constexpr std::pair<char, LayerBranch> kCharacters[] = {{'M', LayerBranch::kRecurrent},
                                                          {'*', LayerBranch::kAttention},
                                                          {'-', LayerBranch::kMlp},
                                                          {'E', LayerBranch::kExperts}};
  QUIRE_ASSIGN_OR_RETURN(const std::optional<std::string> pattern, reader.OptionalString(kKey));
  if (!pattern) return reader.Error(kKey, "and layers_block_type are missing");
  QUIRE_RETURN_IF_ERROR(reader.CheckLength(kKey, pattern->size(), num_layers));
  std::vector<LayerBranch> layers;
  for (const char c : *pattern) {
    const auto* found = std::find_if(std::begin(kCharacters), std::end(kCharacters),
                                     [&](const auto& entry) { return entry.first == c; });
    if (found == std::end(kCharacters)) {
      return reader.Unsupported(kKey, "(supported: the characters M * - E)");
    }
    layers.push_back(found->second);
  }
  return layers;
}

// Returns the branch of every layer. Layers that `key` lists, counted from `first`, have attention.
// All others are recurrent.
absl::StatusOr<std::vector<LayerBranch>> ReadNumbers(const ConfigReader& reader,
                                                     absl::string_view key, std::int32_t first,
                                                     std::uint32_t num_layers) {
  QUIRE_ASSIGN_OR_RETURN(const std::optional<std::vector<std::int32_t>> numbers,
                         reader.OptionalIds(key));
  if (!numbers) return reader.Error(key, "is missing");
  std::vector<LayerBranch> layers(num_layers, LayerBranch::kRecurrent);
  for (const std::int32_t number : *numbers) {
    const std::int64_t index = std::int64_t{number} - first;
    if (index < 0 || index >= num_layers) {
      return reader.Error(key, absl::StrCat("has layer ", number, ", it must be ", first, " to ",
                                            num_layers - 1 + static_cast<std::uint32_t>(first)));
    }
    layers[static_cast<std::size_t>(index)] = LayerBranch::kAttention;
  }
  return layers;
}

// Reads linear_attn_config. Its two lists of layers, which count from 1, must name each layer once.
absl::StatusOr<std::vector<LayerBranch>> ReadKdaLayers(const ConfigReader& kda,
                                                       std::uint32_t num_layers) {
  QUIRE_ASSIGN_OR_RETURN(const std::vector<LayerBranch> layers,
                         ReadNumbers(kda, "full_attn_layers", 1, num_layers));
  QUIRE_ASSIGN_OR_RETURN(const std::vector<LayerBranch> others,
                         ReadNumbers(kda, "kda_layers", 1, num_layers));
  for (std::size_t i = 0; i < layers.size(); ++i) {
    if (layers[i] == others[i]) {
      return kda.Error("kda_layers", absl::StrCat("and full_attn_layers must name layer ", i + 1,
                                                  " once, in one of the two lists"));
    }
  }
  return layers;
}

// If linear_attn_config has lists of layers, they must agree with layer_types.
absl::Status CheckKdaLayers(const ConfigReader& reader, absl::string_view key,
                            const std::vector<LayerBranch>& layers) {
  QUIRE_ASSIGN_OR_RETURN(const std::optional<ConfigReader> kda,
                         reader.OptionalObject("linear_attn_config"));
  const auto has = [&](absl::string_view list) { return kda->Has(list) && !kda->IsNull(list); };
  if (!kda || !(has("full_attn_layers") || has("kda_layers"))) return absl::OkStatus();
  QUIRE_ASSIGN_OR_RETURN(const std::vector<LayerBranch> listed,
                         ReadKdaLayers(*kda, static_cast<std::uint32_t>(layers.size())));
  for (std::size_t i = 0; i < layers.size(); ++i) {
    if (layers[i] == listed[i]) continue;
    const bool is_full = layers[i] == LayerBranch::kAttention;
    return reader.Error(
        absl::StrCat(key, "[", i, "]"),
        absl::StrCat("is ", is_full ? "full_attention" : "linear_attention",
                     ", but linear_attn_config.", is_full ? "kda_layers" : "full_attn_layers",
                     " lists layer ", i + 1, " (counted from 1); remove one of the two"));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<LayerBranch>> ReadBranches(const ConfigReader& reader,
                                                      const Family& family,
                                                      std::uint32_t num_layers) {
  for (const absl::string_view key : {"layer_types", "layers_block_type"}) {
    QUIRE_ASSIGN_OR_RETURN(const std::optional<std::vector<std::string>> types,
                           reader.OptionalStrings(key));
    if (!types) continue;
    QUIRE_RETURN_IF_ERROR(reader.CheckLength(key, types->size(), num_layers));
    std::vector<LayerBranch> layers;
    for (std::size_t i = 0; i < types->size(); ++i) {
      QUIRE_ASSIGN_OR_RETURN(const LayerBranch branch,
                             BranchOf(reader, family, key, i, (*types)[i]));
      layers.push_back(branch);
    }
    if (ReadsKey(family, "linear_attn_config")) {
      QUIRE_RETURN_IF_ERROR(CheckKdaLayers(reader, key, layers));
    }
    return CheckAttention(reader, key, std::move(layers));
  }
  if (ReadsKey(family, "full_attention_interval")) return ReadInterval(reader, num_layers);
  if (ReadsKey(family, "hybrid_override_pattern")) return ReadPattern(reader, num_layers);
  if (ReadsKey(family, "linear_attn_config")) {
    QUIRE_ASSIGN_OR_RETURN(const std::optional<ConfigReader> kda,
                           reader.OptionalObject("linear_attn_config"));
    if (!kda) return reader.Error("linear_attn_config", "is missing");
    return ReadKdaLayers(*kda, num_layers);
  }
  if (!ReadsKey(family, "full_attn_idxs")) {
    return std::vector<LayerBranch>(num_layers, LayerBranch::kRecurrent);
  }
  if (!reader.Has("full_attn_idxs") || reader.IsNull("full_attn_idxs")) {
    return std::vector<LayerBranch>(num_layers, LayerBranch::kAttention);
  }
  return ReadNumbers(reader, "full_attn_idxs", 0, num_layers);
}

// A size of recurrent layers. `fallback` is its value if the key is absent or null.
struct SizeKey {
  absl::string_view key;
  std::uint32_t* value;
  std::uint32_t fallback;
  std::uint32_t high;
  std::uint32_t low = 1;
};

absl::Status ReadSizes(const ConfigReader& reader, std::initializer_list<SizeKey> sizes) {
  for (const SizeKey& size : sizes) {
    QUIRE_ASSIGN_OR_RETURN(*size.value,
                           reader.CountOr(size.key, size.low, size.high, size.fallback));
  }
  return absl::OkStatus();
}

// Reads time_step_limit, the limits of dt. transformers has time_step_min and time_step_max too,
// which only initialize weights.
absl::Status ReadTimeSteps(const ConfigReader& reader, RecurrentSpec* recurrent) {
  constexpr absl::string_view kKey = "time_step_limit";
  QUIRE_ASSIGN_OR_RETURN(const std::optional<std::vector<double>> limits,
                         reader.OptionalLimits(kKey));
  if (!limits) return absl::OkStatus();
  if (limits->size() != 2 || !((*limits)[0] >= 0 && (*limits)[0] <= (*limits)[1])) {
    return reader.Error(kKey, absl::StrCat("is ", reader.ValueText(kKey),
                                           ", it must be two ascending numbers of at least 0"));
  }
  const auto narrow = [](double limit) {
    return limit > std::numeric_limits<float>::max() ? std::numeric_limits<float>::infinity()
                                                     : static_cast<float>(limit);
  };
  recurrent->dt_min = narrow((*limits)[0]);
  recurrent->dt_max = narrow((*limits)[1]);
  return absl::OkStatus();
}

// The keys of Mamba sizes, which have different names in two groups of families.
struct MambaKeys {
  absl::string_view heads, head_size, groups, state_size, conv_width, conv_bias;
};
constexpr MambaKeys kMambaKeys{"mamba_n_heads", "mamba_d_head", "mamba_n_groups",
                               "mamba_d_state", "mamba_d_conv", "mamba_conv_bias"};
constexpr MambaKeys kNemotronKeys{"mamba_num_heads", "mamba_head_dim", "n_groups",
                                  "ssm_state_size",  "conv_kernel",    "use_conv_bias"};

absl::StatusOr<RecurrentSpec> ReadMamba(const ConfigReader& reader, const MambaKeys& keys,
                                        std::uint32_t default_groups, std::uint32_t default_state) {
  RecurrentSpec mamba;
  QUIRE_RETURN_IF_ERROR(
      ReadSizes(reader, {{keys.heads, &mamba.heads, 128, kMaxStateHeads},
                         {keys.groups, &mamba.key_heads, default_groups, kMaxStateHeads},
                         {keys.state_size, &mamba.key_size, default_state, kMaxStateColumns},
                         {keys.conv_width, &mamba.conv_width, 4, kMaxConvWidth}}));
  QUIRE_ASSIGN_OR_RETURN(mamba.conv_bias, reader.BoolOr(keys.conv_bias, true));
  QUIRE_RETURN_IF_ERROR(ReadTimeSteps(reader, &mamba));
  return mamba;
}

// Reads mamba_d_head, which may be "auto": mamba_expand * hidden_size / mamba_n_heads.
absl::Status ReadHeadSize(const ConfigReader& reader, std::uint32_t hidden_size,
                          RecurrentSpec* mamba) {
  constexpr absl::string_view kKey = kMambaKeys.head_size;
  const bool is_auto = !reader.Has(kKey) || reader.ValueText(kKey) == "\"auto\"";
  if (!is_auto) return ReadSizes(reader, {{kKey, &mamba->value_size, 0, kMaxStateColumns}});
  std::uint32_t expand = 0;
  QUIRE_RETURN_IF_ERROR(ReadSizes(reader, {{"mamba_expand", &expand, 2, 64}}));
  const std::uint64_t inner = std::uint64_t{expand} * hidden_size;
  if (inner % mamba->heads != 0 || inner / mamba->heads > kMaxStateColumns) {
    return reader.Error(
        kKey, absl::StrCat("is \"auto\": mamba_expand * hidden_size ", inner, " / mamba_n_heads ",
                           mamba->heads, " must be an integer of at most ", kMaxStateColumns));
  }
  mamba->value_size = static_cast<std::uint32_t>(inner / mamba->heads);
  return absl::OkStatus();
}

absl::StatusOr<RecurrentSpec> ReadDeltaRule(const ConfigReader& reader) {
  RecurrentSpec delta;
  QUIRE_RETURN_IF_ERROR(
      ReadSizes(reader, {{"linear_num_key_heads", &delta.key_heads, 16, kMaxStateHeads},
                         {"linear_num_value_heads", &delta.heads, 32, kMaxStateHeads},
                         {"linear_key_head_dim", &delta.key_size, 128, kMaxStateColumns},
                         {"linear_value_head_dim", &delta.value_size, 128, kMaxStateColumns},
                         {"linear_conv_kernel_dim", &delta.conv_width, 4, kMaxConvWidth}}));
  if (delta.heads % delta.key_heads == 0) return delta;
  return reader.Error(
      "linear_num_value_heads",
      absl::StrCat("is ", delta.heads, ", it must be a multiple of linear_num_key_heads ",
                   delta.key_heads));
}

// Refuses keys of linear_attn_config that are not read.
absl::StatusOr<RecurrentSpec> ReadKda(const ConfigReader& reader, const Family& family) {
  constexpr absl::string_view kKnown[] = {"full_attn_layers", "kda_layers", "head_dim", "num_heads",
                                          "short_conv_kernel_size"};
  QUIRE_ASSIGN_OR_RETURN(const std::optional<ConfigReader> keys,
                         reader.OptionalObject("linear_attn_config"));
  if (!keys) return reader.Error("linear_attn_config", "is missing");
  for (const std::string& key : keys->Keys()) {
    const bool is_known = std::find(std::begin(kKnown), std::end(kKnown), key) != std::end(kKnown);
    if (!is_known && !keys->IsNull(key)) {
      return keys->Unsupported(key, absl::StrCat("by ", family.name));
    }
  }
  RecurrentSpec kda;
  QUIRE_RETURN_IF_ERROR(
      ReadSizes(*keys, {{"head_dim", &kda.key_size, 128, kMaxStateColumns},
                        {"num_heads", &kda.heads, 32, kMaxStateHeads},
                        {"short_conv_kernel_size", &kda.conv_width, 4, kMaxConvWidth}}));
  kda.key_heads = kda.heads;
  kda.value_size = kda.key_size;
  return kda;
}

absl::StatusOr<RecurrentSpec> ReadStates(const ConfigReader& reader, const Family& family,
                                         std::uint32_t hidden_size) {
  RecurrentSpec recurrent;
  if (ReadsKey(family, kMambaKeys.heads)) {
    QUIRE_ASSIGN_OR_RETURN(recurrent, ReadMamba(reader, kMambaKeys, 1, 256));
    QUIRE_RETURN_IF_ERROR(ReadHeadSize(reader, hidden_size, &recurrent));
  } else if (ReadsKey(family, kNemotronKeys.heads)) {
    QUIRE_ASSIGN_OR_RETURN(recurrent, ReadMamba(reader, kNemotronKeys, 8, 128));
    QUIRE_RETURN_IF_ERROR(ReadSizes(
        reader, {{kNemotronKeys.head_size, &recurrent.value_size, 64, kMaxStateColumns}}));
  } else if (ReadsKey(family, "linear_num_key_heads")) {
    QUIRE_ASSIGN_OR_RETURN(recurrent, ReadDeltaRule(reader));
  } else if (ReadsKey(family, "linear_attn_config")) {
    QUIRE_ASSIGN_OR_RETURN(recurrent, ReadKda(reader, family));
  } else if (ReadsKey(family, "conv_L_cache")) {
    QUIRE_RETURN_IF_ERROR(
        ReadSizes(reader, {{"conv_L_cache", &recurrent.conv_width, 3, kMaxConvWidth, 2}}));
    return recurrent;
  }
  recurrent.conv_channels = 2 * recurrent.key_columns() + recurrent.value_columns();
  return recurrent;
}

}  // namespace

absl::StatusOr<HybridConfig> ReadHybrid(const ConfigReader& reader, const Family& family,
                                        std::uint32_t num_layers, std::uint32_t hidden_size) {
  HybridConfig hybrid;
  if (family.layer_types.empty()) return hybrid;
  QUIRE_ASSIGN_OR_RETURN(hybrid.layers, ReadBranches(reader, family, num_layers));
  QUIRE_ASSIGN_OR_RETURN(hybrid.recurrent, ReadStates(reader, family, hidden_size));
  return hybrid;
}

absl::StatusOr<std::uint32_t> ReadAdjustedWidth(const ConfigReader& reader) {
  constexpr std::uint32_t kDefault = 12288;
  std::uint32_t width = 0, multiple = 0;
  QUIRE_RETURN_IF_ERROR(
      ReadSizes(reader, {{"intermediate_size", &width, kDefault, kMaxIntermediate}}));
  QUIRE_RETURN_IF_ERROR(ReadSizes(reader, {{"block_ff_dim", &width, width, kMaxIntermediate},
                                           {"block_multiple_of", &multiple, 256, 1 << 16}}));
  QUIRE_ASSIGN_OR_RETURN(const bool adjusts, reader.BoolOr("block_auto_adjust_ff_dim", true));
  if (!adjusts) return width;
  constexpr absl::string_view kFactor = "block_ffn_dim_multiplier";
  QUIRE_ASSIGN_OR_RETURN(const std::optional<double> factor, reader.OptionalNumber(kFactor));
  if (factor && !(*factor > 0 && *factor <= 16)) {
    return reader.Error(kFactor,
                        absl::StrCat("is ", *factor, ", it must be above 0 and at most 16"));
  }
  const double scaled = std::floor(factor.value_or(1) * std::floor(2.0 * width / 3));
  const double rounded = multiple * std::ceil(scaled / multiple);
  if (rounded < 1 || rounded > kMaxIntermediate) {
    return reader.Error("block_ff_dim",
                        absl::StrCat("is ", width, ", which gives an MLP of ", rounded,
                                     ", it must be 1 to ", kMaxIntermediate));
  }
  return static_cast<std::uint32_t>(rounded);
}

std::string WithQuotedInfinity(absl::string_view text) {
  constexpr absl::string_view kKey = "\"time_step_limit\"";
  const std::size_t begin = text.find(kKey);
  const std::size_t end = begin == text.npos ? text.npos : text.find(']', begin);
  if (end == text.npos) return std::string(text);
  return absl::StrCat(text.substr(0, begin),
                      absl::StrReplaceAll(text.substr(begin, end - begin),
                                          {{"\"Infinity\"", "\"Infinity\""},
                                           {"Infinity", "{\"__float__\": \"Infinity\"}"}}),
                      text.substr(end));
}

}  // namespace quire::models
