// Mistral 7B, models published with the Mistral architecture (Nemo, Mistral Small), and Ministral.
//
// The Llama architecture without biases. Every layer has a window of sliding_window tokens, or 4096
// if the key is absent. If the key is null, as in v0.2, there are no windows. Ministral has windows
// in the layers that layer_types lists. A Mistral configuration with layer_types is a Ministral, as
// in the AutoConfig of transformers. Source: modeling_mistral.py and modeling_ministral.py of
// Hugging Face transformers.

#include "absl/status/statusor.h"
#include "models/families/common.h"

namespace quire::models {
namespace {

constexpr absl::string_view kArchitectures[] = {"MistralForCausalLM", "MinistralForCausalLM"};
constexpr absl::string_view kModelTypes[] = {"mistral", "ministral"};
constexpr absl::string_view kKeys[] = {"sliding_window"};

absl::StatusOr<ModelSpec> BuildSpec(const ModelConfig& config) {
  return PreNormSpec(config, MistralFamily());
}

}  // namespace

const Family& MistralFamily() {
  static const Family kFamily{.name = "mistral",
                              .architectures = kArchitectures,
                              .model_types = kModelTypes,
                              .defaults = {.max_position_embeddings = 131072,
                                           .num_key_value_heads = 8,
                                           .sliding_window = 4096},
                              .keys = kKeys,
                              .windows = WindowRule::kEvery,
                              .build_spec = BuildSpec};
  return kFamily;
}

}  // namespace quire::models
