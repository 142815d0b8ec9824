// Phi 3, 3.5 and 4, dense.
//
// The Llama architecture without biases. One tensor holds q, k and v; a second one holds gate and
// up. Every layer has a window unless sliding_window is null. partial_rotary_factor restricts rope
// to the first columns of a head. Longrope is called "su" or "yarn" in early files. Source:
// modeling_phi3.py of Hugging Face transformers.

#include "absl/status/statusor.h"
#include "models/families/common.h"

namespace quire::models {
namespace {

constexpr absl::string_view kArchitectures[] = {"Phi3ForCausalLM"};
constexpr absl::string_view kModelTypes[] = {"phi3"};
constexpr absl::string_view kKeys[] = {"partial_rotary_factor", "sliding_window"};
constexpr TensorNames kNames{.qkv = "self_attn.qkv_proj", .gate_up = "mlp.gate_up_proj"};

constexpr absl::string_view kGgufKeys[] = {"attention.sliding_window", "rope.scaling.attn_factor"};
constexpr TensorNames GgufNames() {
  TensorNames names = kGgufNames;
  names.qkv = "attn_qkv";
  names.gate_up = "ffn_up";
  return names;
}

absl::StatusOr<ModelSpec> BuildSpec(const ModelConfig& config) {
  return PreNormSpec(config, Phi3Family());
}

}  // namespace

const Family& Phi3Family() {
  static const Family kFamily{.name = "phi3",
                              .architectures = kArchitectures,
                              .model_types = kModelTypes,
                              .defaults = {.rms_norm_eps = 1e-5, .max_position_embeddings = 4096},
                              .keys = kKeys,
                              .windows = WindowRule::kAll,
                              .has_old_longrope_names = true,
                              .names = kNames,
                              .gguf_architecture = "phi3",
                              .gguf_names = GgufNames(),
                              .gguf_keys = kGgufKeys,
                              .build_spec = BuildSpec};
  return kFamily;
}

}  // namespace quire::models
