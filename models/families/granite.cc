// Granite 3, dense.
//
// The Llama architecture with four constants, which default to 1. Factors multiply the embedding,
// the outputs of attention and MLP, and the attention scores (instead of d^-0.5). The logits are
// divided by the fourth constant. Source: modeling_granite.py of Hugging Face transformers.

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

const Family& GraniteFamily() {
  static const Family kFamily{.name = "granite",
                              .architectures = kArchitectures,
                              .model_types = kModelTypes,
                              .keys = kKeys,
                              .build_spec = BuildSpec};
  return kFamily;
}

}  // namespace quire::models
