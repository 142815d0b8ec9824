#include "models/families/granite.h"

#include "absl/status/statusor.h"
#include "base/status.h"
#include "models/families/common.h"

namespace quire::models {
namespace {

constexpr absl::string_view kArchitectures[] = {"GraniteForCausalLM"};
constexpr absl::string_view kModelTypes[] = {"granite"};
constexpr absl::string_view kKeys[] = {"attention_bias",       "mlp_bias",
                                       "attention_multiplier", "embedding_multiplier",
                                       "residual_multiplier",  "logits_scaling"};

absl::StatusOr<ModelSpec> BuildSpec(const ModelConfig& config) {
  QUIRE_ASSIGN_OR_RETURN(ModelSpec spec, PreNormSpec(config, GraniteFamily()));
  ApplyGraniteMultipliers(config, &spec);
  return spec;
}

}  // namespace

void ApplyGraniteMultipliers(const ModelConfig& config, ModelSpec* spec) {
  spec->embed_scale = static_cast<float>(config.embedding_multiplier);
  spec->logit_scale = static_cast<float>(1.0 / config.logits_scaling);
  for (LayerSpec& layer : spec->layers) {
    layer.heads.scale = static_cast<float>(config.attention_multiplier);
    layer.residual_scale = static_cast<float>(config.residual_multiplier);
  }
}

const Family& GraniteFamily() {
  static const Family kFamily{.name = "granite",
                              .architectures = kArchitectures,
                              .model_types = kModelTypes,
                              .defaults = {},
                              .keys = kKeys,
                              .names = {},
                              .gguf_architecture = "",
                              .gguf_names = {},
                              .build_spec = BuildSpec};
  return kFamily;
}

}  // namespace quire::models
