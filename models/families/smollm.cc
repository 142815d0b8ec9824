// SmolLM 3. Its predecessors have the Llama architecture.
//
// The Llama architecture, without rope in every fourth layer. Despite its name, no_rope_layers has
// a 1 for each layer with rope. With use_sliding_window the layers without rope have windows.
// Source: modeling_smollm3.py of Hugging Face transformers.

#include "absl/status/statusor.h"
#include "models/families/common.h"

namespace quire::models {
namespace {

constexpr absl::string_view kArchitectures[] = {"SmolLM3ForCausalLM"};
constexpr absl::string_view kModelTypes[] = {"smollm3"};
constexpr absl::string_view kKeys[] = {"attention_bias", "mlp_bias",
                                       "no_rope_layers", "no_rope_layer_interval",
                                       "sliding_window", "use_sliding_window"};

absl::StatusOr<ModelSpec> BuildSpec(const ModelConfig& config) {
  return PreNormSpec(config, SmolLm3Family());
}

}  // namespace

const Family& SmolLm3Family() {
  static const Family kFamily{.name = "smollm3",
                              .architectures = kArchitectures,
                              .model_types = kModelTypes,
                              .defaults = {.rope_theta = 2000000,
                                           .max_position_embeddings = 32768,
                                           .tie_word_embeddings = true,
                                           .num_key_value_heads = 4},
                              .keys = kKeys,
                              .windows = WindowRule::kNoRope,
                              .build_spec = BuildSpec};
  return kFamily;
}

}  // namespace quire::models
