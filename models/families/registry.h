#pragma once

// Which families of models this version knows: everything that is special to one is an entry here
// and a file beside this one. docs/adding_a_model.md walks through a new entry.

#include <cstdint>
#include <span>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "models/layer_spec.h"
#include "models/model_config.h"

namespace quire::models {

// What an absent key of config.json means in a family.
struct ConfigDefaults {
  double rope_theta = 10000;
  double rms_norm_eps = 1e-6;
  absl::string_view hidden_act = "silu";
  std::uint32_t max_position_embeddings = 2048;
  bool tie_word_embeddings = false;
};

// Names of a family's tensors; empty: the family has no such slot. Weights and biases end in
// ".weight" and ".bias". Names of a layer follow `layer_prefix`, the layer's number and a dot.
struct TensorNames {
  absl::string_view embedding = "model.embed_tokens";
  absl::string_view final_norm = "model.norm";
  absl::string_view head = "lm_head";
  absl::string_view layer_prefix = "model.layers.";
  absl::string_view attn_in = "input_layernorm";
  absl::string_view attn_out = "";
  absl::string_view mlp_in = "post_attention_layernorm";
  absl::string_view mlp_out = "";
  absl::string_view q = "self_attn.q_proj";
  absl::string_view k = "self_attn.k_proj";
  absl::string_view v = "self_attn.v_proj";
  absl::string_view o = "self_attn.o_proj";
  absl::string_view gate = "mlp.gate_proj";
  absl::string_view up = "mlp.up_proj";
  absl::string_view down = "mlp.down_proj";
};

struct Family {
  absl::string_view name;
  std::span<const absl::string_view> architectures;
  std::span<const absl::string_view> model_types;
  ConfigDefaults defaults;
  TensorNames names;
  absl::string_view gguf_architecture;  // general.architecture of GGUF files; empty: none are read
  TensorNames gguf_names;
  // A checked configuration as data. Returns UNIMPLEMENTED or INVALID_ARGUMENT naming the key.
  absl::StatusOr<ModelSpec> (*build_spec)(const ModelConfig& config);
};

// Null when no family has it.
const Family* FindFamilyByArchitecture(absl::string_view architecture);
const Family* FindFamilyByModelType(absl::string_view model_type);
const Family* FindFamilyByGgufArchitecture(absl::string_view architecture);
// By ModelConfig::family. REQUIRES: the family exists.
const Family& FamilyNamed(absl::string_view name);
// Names of the tensors in the files that a configuration comes from.
const TensorNames& TensorNamesOf(const ModelConfig& config);
// "LlamaForCausalLM, ...", for messages.
std::string SupportedArchitectures();
std::string SupportedModelTypes();
std::string SupportedGgufArchitectures();

}  // namespace quire::models
