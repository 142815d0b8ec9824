#pragma once

// The configuration of a model, independent of the files that it was read from
// (models/families/read_model_config.h).

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "formats/stored_quantization.h"
#include "models/config/hybrid_config.h"
#include "models/config/index_config.h"
#include "models/config/mla_config.h"
#include "models/config/moe_config.h"
#include "models/config/per_layer_config.h"
#include "models/config/pooling_config.h"
#include "models/config/rope_table.h"

namespace quire::models {

// Sampling values of generation_config.json. They are the defaults of requests.
struct GenerationDefaults {
  std::optional<bool> do_sample;
  std::optional<float> temperature;         // [0, 100]
  std::optional<std::int32_t> top_k;        // >= 0; 0: off
  std::optional<float> top_p;               // (0, 1]
  std::optional<float> min_p;               // [0, 1]
  std::optional<float> repetition_penalty;  // > 0
};

// The product of any two of these limits is far below 2^63.
inline constexpr std::uint32_t kMaxHidden = 1u << 20;
inline constexpr std::uint32_t kMaxIntermediate = 1u << 22;
inline constexpr std::uint32_t kMaxLayers = 1024;
inline constexpr std::uint32_t kMaxHeads = 4096;
inline constexpr std::uint32_t kMaxHeadDim = 4096;
inline constexpr std::uint32_t kMaxVocab = 1u << 24;
inline constexpr std::uint32_t kMaxPositions = 1u << 30;

// The output that a model computes from the hidden state after the final norm.
enum class ModelOutput : std::uint8_t {
  kTokens,  // logits of the vocabulary: ...ForCausalLM
  kLabels,  // logits of labels, for the last token: ...ForSequenceClassification
  kHidden   // the hidden state itself: ...Model
};

struct ModelConfig {
  std::string family;        // "llama": the entry of families/registry.h that reads this model
  std::string architecture;  // "LlamaForCausalLM"
  std::string model_type;    // "llama"
  ModelOutput output = ModelOutput::kTokens;
  std::vector<std::string> labels;  // names of the labels for kLabels
  PoolingConfig pooling;
  bool is_gguf = false;  // read from a GGUF file; selects Family::gguf_names
  std::uint32_t vocab_size = 0;
  std::uint32_t hidden_size = 0;
  std::uint32_t intermediate_size = 0;
  std::uint32_t num_hidden_layers = 0;
  std::uint32_t num_attention_heads = 0;
  std::uint32_t num_key_value_heads = 0;
  std::uint32_t head_dim = 0;
  std::uint32_t max_position_embeddings = 0;
  float rms_norm_eps = 0;
  std::string hidden_act;
  bool attention_bias = false;
  bool use_qk_norm = true;
  bool mlp_bias = false;
  bool tie_word_embeddings = false;
  DType dtype = DType::kBF16;  // dtype of activations in training; tensors keep their stored type
  // Rotated columns of a head: rotary_dim, or partial_rotary_factor * head_dim.
  std::uint32_t rotary_size = 0;
  RopeConfig rope;
  // Set if windowed layers have their own rope settings (rope_local_base_freq).
  std::optional<RopeConfig> local_rope;
  // Window of each layer, 0 for none; empty if no layer has one. WindowRule states which keys are
  // read.
  std::vector<std::uint32_t> windows;
  // Chunk of each layer, 0 for none; empty if the family has no chunks.
  std::vector<std::uint32_t> chunks;
  std::vector<bool> rope_layers;  // layers with rope, from no_rope_layers; empty: all layers
  bool attn_temperature_tuning = false;
  std::uint32_t floor_scale = 0;  // tokens
  double attn_scale = 0;
  // Width of dense layers, in families whose intermediate_size is the width of an expert.
  std::uint32_t intermediate_size_mlp = 0;
  double query_pre_attn_scalar = 0;
  double attn_logit_softcapping = 0;   // 0: off
  double final_logit_softcapping = 0;  // 0: off
  double attention_multiplier = 1;
  double embedding_multiplier = 1;
  double residual_multiplier = 1;
  double logits_scaling = 1;
  // False: position_embedding_type is not "rope", or GGUF's rope.scaling.finetuned is false.
  bool has_rope = true;
  std::uint32_t shared_intermediate_size = 0;  // width of the MLP beside the experts, in all layers
  MoeConfig moe;
  MlaConfig mla;
  HybridConfig hybrid;
  IndexConfig index;
  PerLayerConfig per_layer;
  formats::StoredQuantization stored_quantization;
  std::vector<std::int32_t> eos_ids;
  std::optional<std::int32_t> bos_id;
  std::optional<std::int32_t> pad_id;
  GenerationDefaults generation;
  std::vector<std::string> warnings;  // for the load log, one sentence each
};

}  // namespace quire::models
