#include "models/config/recurrent_config.h"

#include <algorithm>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "models/config/config_reader.h"
#include "models/config/family.h"
#include "models/config/layer_spec.h"

namespace quire::models {
namespace {

absl::StatusOr<std::vector<bool>> ReadLayers(const ConfigReader& reader, const Family& family,
                                             std::uint32_t num_layers) {
  QUIRE_ASSIGN_OR_RETURN(const std::optional<std::vector<std::string>> types,
                         reader.OptionalStrings("layer_types"));
  QUIRE_ASSIGN_OR_RETURN(const std::optional<std::int64_t> interval,
                         reader.OptionalInteger("full_attention_interval", 1, kMaxLayers));
  std::vector<bool> layers;
  if (!types) {
    for (std::uint32_t i = 0; i < num_layers; ++i) {
      layers.push_back((i + 1) % interval.value_or(4) != 0);
    }
  } else if (types->size() != num_layers) {
    return reader.Error("layer_types", absl::StrCat("has ", types->size(),
                                                    " entries, num_hidden_layers is ", num_layers));
  }
  for (std::size_t i = 0; types && i < types->size(); ++i) {
    const std::string& type = (*types)[i];
    if (type != "linear_attention" && type != "full_attention") {
      return absl::UnimplementedError(
          absl::StrCat(reader.label(), ": layer_types[", i, "] \"", type, "\" is not supported by ",
                       family.name, " (supported: linear_attention, full_attention)"));
    }
    layers.push_back(type == "linear_attention");
  }
  if (std::find(layers.begin(), layers.end(), false) == layers.end()) {
    return reader.Error(types ? "layer_types" : "full_attention_interval",
                        "leaves no layer with full attention");
  }
  return layers;
}

}  // namespace

absl::StatusOr<RecurrentConfig> ReadRecurrent(const ConfigReader& reader, const Family& family,
                                              std::uint32_t num_layers) {
  RecurrentConfig config;
  if (!family.has_recurrent_layers) return config;
  QUIRE_ASSIGN_OR_RETURN(config.layers, ReadLayers(reader, family, num_layers));
  const struct {
    absl::string_view key;
    std::uint32_t* value;
    std::uint32_t most;
    std::uint32_t absent;
  } sizes[] = {{"linear_num_key_heads", &config.key_heads, kMaxHeads, 16},
               {"linear_num_value_heads", &config.value_heads, kMaxHeads, 32},
               {"linear_key_head_dim", &config.key_size, kMaxStateColumns, 128},
               {"linear_value_head_dim", &config.value_size, kMaxStateColumns, 128},
               {"linear_conv_kernel_dim", &config.conv_width, kMaxConvWidth, 4}};
  for (const auto& size : sizes) {
    QUIRE_ASSIGN_OR_RETURN(const std::optional<std::int64_t> given,
                           reader.OptionalInteger(size.key, 1, size.most));
    *size.value = static_cast<std::uint32_t>(given.value_or(size.absent));
  }
  if (config.value_heads % config.key_heads != 0) {
    return reader.Error(
        "linear_num_value_heads",
        absl::StrCat("is ", config.value_heads, ", it must be a multiple of linear_num_key_heads ",
                     config.key_heads));
  }
  return config;
}

}  // namespace quire::models
