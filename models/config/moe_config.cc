#include "models/config/moe_config.h"

#include <optional>
#include <span>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "models/config/config_reader.h"
#include "models/config/family.h"

namespace quire::models {
namespace {

constexpr absl::string_view kExpertKeys[] = {"num_experts", "num_local_experts",
                                             "n_routed_experts"};
constexpr absl::string_view kExpertsPerTokenKeys[] = {"num_experts_per_tok", "experts_per_token",
                                                      "num_experts_per_token"};

// Reads a number that has several names. If more than one is given, they must agree.
absl::StatusOr<std::uint32_t> AliasedCount(const ConfigReader& reader,
                                           std::span<const absl::string_view> keys,
                                           std::uint32_t low, std::uint32_t high,
                                           std::uint32_t fallback) {
  std::optional<std::int64_t> value;
  absl::string_view from;
  for (const absl::string_view key : keys) {
    QUIRE_ASSIGN_OR_RETURN(const std::optional<std::int64_t> given,
                           reader.OptionalInteger(key, low, high));
    if (!given) continue;
    if (value && *given != *value) {
      return reader.Error(key, absl::StrCat("is ", *given, ", but ", from, " is ", *value));
    }
    value = given;
    from = key;
  }
  return static_cast<std::uint32_t>(value.value_or(fallback));
}

// Sparse layers are MoE layers. Every decoder_sparse_step-th or interleave_moe_layer_step-th layer
// is sparse, except those in mlp_only_layers. If moe_layers is given, exactly the layers that it
// lists are sparse.
absl::StatusOr<std::vector<bool>> ReadSparseLayers(const ConfigReader& reader, const Family& family,
                                                   std::uint32_t num_layers) {
  std::vector<bool> sparse(num_layers, true);
  for (const absl::string_view key : {"decoder_sparse_step", "interleave_moe_layer_step"}) {
    if (!ReadsKey(family, key)) continue;
    QUIRE_ASSIGN_OR_RETURN(const std::uint32_t step, reader.CountOr(key, 1, kMaxLayers + 1, 1));
    for (std::uint32_t i = 0; i < num_layers; ++i) sparse[i] = (i + 1) % step == 0;
  }
  for (const bool is_sparse : {false, true}) {
    const absl::string_view key = is_sparse ? "moe_layers" : "mlp_only_layers";
    if (!ReadsKey(family, key)) continue;
    QUIRE_ASSIGN_OR_RETURN(const std::optional<std::vector<std::int32_t>> layers,
                           reader.OptionalIds(key));
    if (!layers) continue;
    if (is_sparse) sparse.assign(num_layers, false);
    for (const std::int32_t layer : *layers) {
      // A file with a number beyond the last layer was made for another model.
      if (static_cast<std::uint32_t>(layer) >= num_layers) {
        return reader.Error(
            key, absl::StrCat("has layer ", layer, ", num_hidden_layers is ", num_layers));
      }
      sparse[static_cast<std::size_t>(layer)] = is_sparse;
    }
  }
  return sparse;
}

// Reads a number above 0.
absl::Status ReadPositive(const ConfigReader& reader, const Family& family, absl::string_view key,
                          double fallback, double* value) {
  if (!ReadsKey(family, key)) return absl::OkStatus();
  QUIRE_ASSIGN_OR_RETURN(const std::optional<double> given, reader.OptionalNumber(key));
  *value = given.value_or(fallback);
  if (*value > 0 && *value <= 1e6) return absl::OkStatus();
  return reader.Error(key, absl::StrCat("is ", *value, ", it must be above 0 and at most 1e6"));
}

// If mlp_layer_types is given, the layers that it lists as sparse are sparse. Otherwise the layers
// after the first first_k_dense_replace are sparse.
absl::Status ReadDenseLayers(const ConfigReader& reader, const Family& family,
                             std::vector<bool>* sparse) {
  if (!ReadsKey(family, "first_k_dense_replace")) return absl::OkStatus();
  QUIRE_ASSIGN_OR_RETURN(const std::uint32_t frequency,
                         reader.CountOr("moe_layer_freq", 1, kMaxLayers, 1));
  if (frequency != 1) return reader.Unsupported("moe_layer_freq", "(supported: 1)");
  QUIRE_ASSIGN_OR_RETURN(const std::optional<std::vector<std::string>> types,
                         reader.OptionalStrings("mlp_layer_types"));
  if (!types) {
    QUIRE_ASSIGN_OR_RETURN(const std::uint32_t first,
                           reader.CountOr("first_k_dense_replace", 0, kMaxLayers,
                                          family.defaults.first_k_dense_replace));
    for (std::size_t i = 0; i < sparse->size(); ++i) (*sparse)[i] = i >= first;
    return absl::OkStatus();
  }
  QUIRE_RETURN_IF_ERROR(reader.CheckLength("mlp_layer_types", types->size(),
                                           static_cast<std::uint32_t>(sparse->size())));
  for (std::size_t i = 0; i < sparse->size(); ++i) {
    const std::string& type = (*types)[i];
    if (type != "dense" && type != "sparse") {
      return reader.Unsupported("mlp_layer_types", "(supported: dense, sparse)");
    }
    (*sparse)[i] = type == "sparse";
  }
  return absl::OkStatus();
}

// Reads the width of the shared expert and of the latent space.
absl::Status ReadWidths(const ConfigReader& reader, const Family& family, MoeConfig* moe) {
  const struct {
    absl::string_view key;
    std::uint32_t* value;
    std::uint32_t absent;
  } widths[] = {{"moe_shared_expert_intermediate_size", &moe->shared_expert_intermediate_size,
                 family.defaults.moe_intermediate_size},
                {"moe_latent_size", &moe->latent_size, 0}};
  for (const auto& width : widths) {
    if (!ReadsKey(family, width.key)) continue;
    QUIRE_ASSIGN_OR_RETURN(*width.value,
                           reader.CountOr(width.key, 1, kMaxIntermediate, width.absent));
  }
  return absl::OkStatus();
}

// Reads the keys of DeepSeek-like families: groups, shared experts, the method of routing and the
// scaling factor.
absl::Status ReadRouting(const ConfigReader& reader, const Family& family, MoeConfig* moe) {
  const struct {
    absl::string_view key;
    std::uint32_t* value;
    std::uint32_t low;
    std::uint32_t absent;
  } counts[] = {{"n_shared_experts", &moe->n_shared_experts, 0, family.defaults.n_shared_experts},
                {"num_shared_experts", &moe->n_shared_experts, 0, family.defaults.n_shared_experts},
                {"n_group", &moe->n_group, 1, family.defaults.n_group},
                {"num_expert_group", &moe->n_group, 1, family.defaults.n_group},
                {"topk_group", &moe->topk_group, 1, family.defaults.topk_group}};
  for (const auto& count : counts) {
    if (!ReadsKey(family, count.key)) continue;
    // Null means one group or no shared expert.
    const std::uint32_t fallback = reader.IsNull(count.key) ? count.low : count.absent;
    QUIRE_ASSIGN_OR_RETURN(*count.value,
                           reader.CountOr(count.key, count.low, kMaxExperts, fallback));
  }
  if (std::uint64_t{moe->n_shared_experts} * moe->intermediate_size > kMaxIntermediate) {
    const absl::string_view key =
        ReadsKey(family, "num_shared_experts") ? "num_shared_experts" : "n_shared_experts";
    return reader.Error(key, absl::StrCat("is ", moe->n_shared_experts, ", and its product with ",
                                          "moe_intermediate_size ", moe->intermediate_size,
                                          " exceeds the limit ", kMaxIntermediate));
  }
  const std::pair<absl::string_view, std::string*> names[] = {
      {"topk_method", &moe->topk_method},
      {"scoring_func", &moe->scoring_func},
      {"moe_router_activation_func", &moe->scoring_func}};
  for (const auto& [key, value] : names) {
    if (!ReadsKey(family, key)) continue;
    QUIRE_ASSIGN_OR_RETURN(const std::optional<std::string> given, reader.OptionalString(key));
    *value = given.value_or("");
  }
  if (ReadsKey(family, "use_routing_bias")) {
    QUIRE_ASSIGN_OR_RETURN(moe->use_routing_bias, reader.BoolOr("use_routing_bias", true));
  }
  return ReadPositive(reader, family, "routed_scaling_factor",
                      family.defaults.routed_scaling_factor, &moe->routed_scaling_factor);
}

// Reads the keys of families in which enable_moe_block adds experts to all layers.
absl::StatusOr<MoeConfig> ReadOptionalMoe(const ConfigReader& reader, std::uint32_t num_layers) {
  MoeConfig moe;
  QUIRE_ASSIGN_OR_RETURN(const bool enabled, reader.BoolOr("enable_moe_block", false));
  if (!enabled) return moe;
  QUIRE_ASSIGN_OR_RETURN(moe.num_experts, reader.Count("num_experts", 1, kMaxExperts));
  QUIRE_ASSIGN_OR_RETURN(moe.experts_per_token, reader.Count("top_k_experts", 1, moe.num_experts));
  QUIRE_ASSIGN_OR_RETURN(moe.intermediate_size,
                         reader.Count("moe_intermediate_size", 1, kMaxIntermediate));
  moe.sparse_layers.assign(num_layers, true);
  return moe;
}

}  // namespace

absl::StatusOr<MoeConfig> ReadMoe(const ConfigReader& reader, const Family& family,
                                  std::uint32_t num_layers, std::uint32_t intermediate_size) {
  MoeConfig moe;
  const ConfigDefaults& defaults = family.defaults;
  if (ReadsKey(family, "enable_moe_block")) return ReadOptionalMoe(reader, num_layers);
  if (defaults.num_experts == 0) return moe;
  // In families with a shared MLP beside the experts, the number of experts may be 0.
  const std::uint32_t low = ReadsKey(family, "shared_intermediate_size") ? 0 : 1;
  QUIRE_ASSIGN_OR_RETURN(moe.num_experts,
                         AliasedCount(reader, kExpertKeys, low, kMaxExperts, defaults.num_experts));
  if (moe.num_experts == 0) return moe;
  QUIRE_ASSIGN_OR_RETURN(
      moe.experts_per_token,
      AliasedCount(reader, kExpertsPerTokenKeys, 1, kMaxExperts, defaults.experts_per_token));
  if (moe.experts_per_token > moe.num_experts) {
    return reader.Error(
        "num_experts_per_tok",
        absl::StrCat("is ", moe.experts_per_token, ", it must be at most the number of experts ",
                     moe.num_experts));
  }
  moe.intermediate_size = intermediate_size;
  if (ReadsKey(family, "moe_intermediate_size")) {
    QUIRE_ASSIGN_OR_RETURN(moe.intermediate_size,
                           reader.CountOr("moe_intermediate_size", 1, kMaxIntermediate,
                                          defaults.moe_intermediate_size));
  }
  if (ReadsKey(family, "shared_expert_intermediate_size")) {
    QUIRE_ASSIGN_OR_RETURN(moe.shared_expert_intermediate_size,
                           reader.CountOr("shared_expert_intermediate_size", 1, kMaxIntermediate,
                                          defaults.shared_expert_intermediate_size));
  }
  for (const absl::string_view key : {"norm_topk_prob", "moe_renormalize"}) {
    if (!ReadsKey(family, key)) continue;
    QUIRE_ASSIGN_OR_RETURN(moe.norm_topk_prob, reader.BoolOr(key, defaults.norm_topk_prob));
  }
  QUIRE_RETURN_IF_ERROR(
      ReadPositive(reader, family, "swiglu_limit", kDefaultSwigluLimit, &moe.swiglu_limit));
  QUIRE_RETURN_IF_ERROR(
      ReadPositive(reader, family, "swiglu_alpha", kDefaultSwigluAlpha, &moe.swiglu_alpha));
  QUIRE_RETURN_IF_ERROR(ReadWidths(reader, family, &moe));
  QUIRE_RETURN_IF_ERROR(ReadRouting(reader, family, &moe));
  QUIRE_ASSIGN_OR_RETURN(moe.sparse_layers, ReadSparseLayers(reader, family, num_layers));
  QUIRE_RETURN_IF_ERROR(ReadDenseLayers(reader, family, &moe.sparse_layers));
  return moe;
}

}  // namespace quire::models
