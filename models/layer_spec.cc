#include "models/layer_spec.h"

#include <map>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace quire::models {
namespace {

// Where a message points: "layer 3".
absl::Status Invalid(std::size_t layer, absl::string_view problem) {
  return absl::InvalidArgumentError(absl::StrCat("layer ", layer, ": ", problem));
}

absl::Status ValidateHeads(const ModelSpec& spec, std::size_t index, const AttentionSpec& heads) {
  if (heads.num_heads == 0 || heads.num_kv_heads == 0 || heads.head_size == 0 ||
      heads.v_head_size == 0) {
    return Invalid(index, absl::StrCat("heads ", heads.num_heads, ", KV heads ", heads.num_kv_heads,
                                       ", head sizes ", heads.head_size, " and ", heads.v_head_size,
                                       " must all be above 0"));
  }
  if (heads.num_heads % heads.num_kv_heads != 0) {
    return Invalid(index,
                   absl::StrCat("num_heads is ", heads.num_heads,
                                ", it must be a multiple of num_kv_heads ", heads.num_kv_heads));
  }
  if (heads.softcap != 0 && heads.has_sinks) {
    return Invalid(index, "softcap and sinks exclude each other");
  }
  if (heads.rope < 0) return absl::OkStatus();
  if (static_cast<std::size_t>(heads.rope) >= spec.rope_tables.size()) {
    return Invalid(
        index, absl::StrCat("rope table is ", heads.rope, ", there are ", spec.rope_tables.size()));
  }
  if (heads.rotary_size == 0 || heads.rotary_size % 2 != 0 ||
      heads.rotary_first + heads.rotary_size > heads.head_size) {
    return Invalid(
        index, absl::StrCat("rotary_size ", heads.rotary_size, " from column ", heads.rotary_first,
                            " must be even, above 0 and within head_size ", heads.head_size));
  }
  const std::size_t entries =
      spec.rope_tables[static_cast<std::size_t>(heads.rope)].inv_freq.size();
  if (entries != heads.rotary_size / 2) {
    return Invalid(index, absl::StrCat("rotary_size is ", heads.rotary_size, ", rope table ",
                                       heads.rope, " has ", entries, " entries"));
  }
  return absl::OkStatus();
}

absl::Status ValidateMoe(std::size_t index, const MoeSpec& moe) {
  if (moe.num_experts == 0 || moe.groups == 0 || moe.num_experts % moe.groups != 0) {
    return Invalid(index, absl::StrCat("groups is ", moe.groups, ", it must divide num_experts ",
                                       moe.num_experts));
  }
  const std::uint32_t per_group = moe.num_experts / moe.groups;
  if (moe.top_k == 0 || moe.top_k > moe.groups_kept * per_group) {
    return Invalid(index, absl::StrCat("top_k is ", moe.top_k, ", it must be 1 to ",
                                       moe.groups_kept * per_group));
  }
  if (moe.groups > 1 && moe.group_score == GroupScore::kTop2Sum && per_group < 2) {
    return Invalid(index, "a group of one expert has no two best");
  }
  return absl::OkStatus();
}

absl::Status ValidateLayer(const ModelSpec& spec, std::size_t index) {
  const LayerSpec& layer = spec.layers[index];
  if (layer.attention == AttentionKind::kHeads) {
    QUIRE_RETURN_IF_ERROR(ValidateHeads(spec, index, layer.heads));
  }
  if (layer.mlp == MlpKind::kMoe) QUIRE_RETURN_IF_ERROR(ValidateMoe(index, layer.moe));
  if (layer.mlp == MlpKind::kDense && layer.dense.intermediate == 0) {
    return Invalid(index, "intermediate is 0");
  }
  if (layer.kv_from_layer >= 0) {
    const std::size_t source = static_cast<std::size_t>(layer.kv_from_layer);
    if (source >= index || spec.layers[source].cache_group != layer.cache_group) {
      return Invalid(index, absl::StrCat("kv_from_layer is ", layer.kv_from_layer,
                                         ", it must be an earlier layer of the same cache group"));
    }
  }
  return absl::OkStatus();
}

// The first knob of a layer that this version does not compute, or an empty text.
std::string UnbuiltNorm(absl::string_view slot, const NormSpec& norm) {
  if (norm.kind == NormKind::kLayer) return absl::StrCat(slot, " LayerNorm");
  if (norm.kind == NormKind::kNone) return "";
  if (norm.weight_offset != 0) return absl::StrCat(slot, " weight_offset ", norm.weight_offset);
  if (!norm.has_weight || norm.has_bias) return absl::StrCat(slot, " without weight or with bias");
  return "";
}

std::string UnbuiltAttention(const AttentionSpec& heads) {
  const struct {
    const char* name;
    bool used;
  } knobs[] = {
      {"v_head_size unlike head_size", heads.v_head_size != heads.head_size},
      {"q_bias, k_bias and v_bias that differ",
       heads.q_bias != heads.k_bias || heads.q_bias != heads.v_bias},
      {"clip_qkv", heads.clip_qkv != 0},
      {"qk_norm", heads.qk_norm.kind != NormKind::kNone},
      {"v_norm", heads.v_norm.kind != NormKind::kNone},
      {"a layer without rope", heads.rope < 0},
      {"interleaved rope", heads.rope_style != RopeStyle::kHalf},
      {"partial rotation", heads.rotary_size != heads.head_size || heads.rotary_first != 0},
      {"q_position_scale", heads.q_position_scale.beta != 0},
      {"softcap", heads.softcap != 0},
      {"window", heads.window != 0},
      {"chunk", heads.chunk != 0},
      {"sinks", heads.has_sinks},
      {"value_scale", heads.value_scale != 1},
      {"output_gate", heads.output_gate != GateKind::kNone},
  };
  for (const auto& knob : knobs) {
    if (knob.used) return knob.name;
  }
  return "";
}

std::string UnbuiltMlp(const MlpSpec& mlp) {
  if (!mlp.gated) return "an MLP without gate";
  if (mlp.act != Activation::kSilu) return "an activation other than silu";
  if (mlp.gate_bias != mlp.up_bias) return "gate_bias and up_bias that differ";
  if (mlp.alpha != 1 || mlp.limit != 0 || mlp.up_offset != 0) return "a clamped MLP";
  return "";
}

std::string UnbuiltLayer(const LayerSpec& layer) {
  if (layer.order != LayerOrder::kSequential) return "parallel order";
  if (layer.attention != AttentionKind::kHeads) return "attention other than over heads";
  if (layer.mlp != MlpKind::kDense) return "an MLP that is not dense";
  if (layer.attn_out.kind != NormKind::kNone) return "attn_out norm";
  if (layer.mlp_out.kind != NormKind::kNone) return "mlp_out norm";
  if (layer.attn_in.kind == NormKind::kNone) return "no attn_in norm";
  if (layer.mlp_in.kind == NormKind::kNone) return "no mlp_in norm";
  if (layer.residual_scale != 1) return absl::StrCat("residual_scale ", layer.residual_scale);
  if (layer.output_scale != 1) return absl::StrCat("output_scale ", layer.output_scale);
  if (layer.kv_from_layer >= 0) return "kv_from_layer";
  if (layer.cache_group != 0) return "more than one cache group";
  std::string unbuilt = UnbuiltNorm("attn_in", layer.attn_in);
  if (unbuilt.empty()) unbuilt = UnbuiltNorm("mlp_in", layer.mlp_in);
  if (unbuilt.empty()) unbuilt = UnbuiltAttention(layer.heads);
  if (unbuilt.empty()) unbuilt = UnbuiltMlp(layer.dense);
  return unbuilt;
}

std::string DumpNorm(const NormSpec& norm) {
  if (norm.kind == NormKind::kNone) return "none";
  std::string text = absl::StrCat(norm.kind == NormKind::kRms ? "rms" : "layer", " eps ", norm.eps);
  if (norm.weight_offset != 0) absl::StrAppend(&text, " offset ", norm.weight_offset);
  if (!norm.has_weight) text += " no weight";
  if (norm.has_bias) text += " bias";
  return text;
}

void AppendSet(std::string* text, absl::string_view name, bool value) {
  if (value) absl::StrAppend(text, " ", name);
}

std::string DumpHeads(const AttentionSpec& heads) {
  std::string text =
      absl::StrCat("heads ", heads.num_heads, " kv ", heads.num_kv_heads, " size ", heads.head_size,
                   " v ", heads.v_head_size, " scale ", heads.scale, " rope ", heads.rope);
  if (heads.rope >= 0) {
    absl::StrAppend(&text, heads.rope_style == RopeStyle::kHalf ? " half " : " interleaved ",
                    heads.rotary_first, "+", heads.rotary_size);
  }
  AppendSet(&text, "q_bias", heads.q_bias);
  AppendSet(&text, "k_bias", heads.k_bias);
  AppendSet(&text, "v_bias", heads.v_bias);
  AppendSet(&text, "o_bias", heads.o_bias);
  AppendSet(&text, absl::StrCat("clip ", heads.clip_qkv), heads.clip_qkv != 0);
  AppendSet(&text, absl::StrCat("qk_norm ", DumpNorm(heads.qk_norm)),
            heads.qk_norm.kind != NormKind::kNone);
  AppendSet(&text, absl::StrCat("v_norm ", DumpNorm(heads.v_norm)),
            heads.v_norm.kind != NormKind::kNone);
  AppendSet(&text, absl::StrCat("position_scale ", heads.q_position_scale.beta),
            heads.q_position_scale.beta != 0);
  AppendSet(&text, absl::StrCat("softcap ", heads.softcap), heads.softcap != 0);
  AppendSet(&text, absl::StrCat("window ", heads.window), heads.window != 0);
  AppendSet(&text, absl::StrCat("chunk ", heads.chunk), heads.chunk != 0);
  AppendSet(&text, "sinks", heads.has_sinks);
  AppendSet(&text, absl::StrCat("value_scale ", heads.value_scale), heads.value_scale != 1);
  AppendSet(&text, "output_gate", heads.output_gate != GateKind::kNone);
  return text;
}

std::string DumpMlp(const MlpSpec& mlp) {
  constexpr const char* kActs[] = {"silu", "gelu_tanh", "gelu_erf", "relu2"};
  std::string text = absl::StrCat(mlp.gated ? "gated " : "plain ",
                                  kActs[static_cast<std::size_t>(mlp.act)], " ", mlp.intermediate);
  AppendSet(&text, "gate_bias", mlp.gate_bias);
  AppendSet(&text, "up_bias", mlp.up_bias);
  AppendSet(&text, "down_bias", mlp.down_bias);
  AppendSet(&text, absl::StrCat("alpha ", mlp.alpha), mlp.alpha != 1);
  AppendSet(&text, absl::StrCat("limit ", mlp.limit), mlp.limit != 0);
  AppendSet(&text, absl::StrCat("up_offset ", mlp.up_offset), mlp.up_offset != 0);
  return text;
}

std::string DumpLayer(const LayerSpec& layer) {
  std::string text = layer.order == LayerOrder::kSequential ? "sequential" : "parallel";
  absl::StrAppend(&text, "; attn_in ", DumpNorm(layer.attn_in), "; ");
  if (layer.attention == AttentionKind::kHeads) {
    text += DumpHeads(layer.heads);
  } else if (layer.attention == AttentionKind::kMla) {
    absl::StrAppend(&text, "mla heads ", layer.mla.num_heads, " rank ", layer.mla.kv_lora_rank);
  } else {
    text += "no attention";
  }
  absl::StrAppend(&text, "; attn_out ", DumpNorm(layer.attn_out), "; mlp_in ",
                  DumpNorm(layer.mlp_in), "; ");
  if (layer.mlp == MlpKind::kDense) {
    text += DumpMlp(layer.dense);
  } else if (layer.mlp == MlpKind::kMoe) {
    absl::StrAppend(&text, "experts ", layer.moe.top_k, " of ", layer.moe.num_experts, " ",
                    DumpMlp(layer.moe.expert));
  } else {
    text += "no mlp";
  }
  absl::StrAppend(&text, "; mlp_out ", DumpNorm(layer.mlp_out), "; group ", layer.cache_group);
  AppendSet(&text, absl::StrCat("residual_scale ", layer.residual_scale),
            layer.residual_scale != 1);
  AppendSet(&text, absl::StrCat("output_scale ", layer.output_scale), layer.output_scale != 1);
  AppendSet(&text, absl::StrCat("kv_from_layer ", layer.kv_from_layer), layer.kv_from_layer >= 0);
  return text;
}

}  // namespace

void AssignCacheGroups(ModelSpec* spec) {
  using Key = std::tuple<AttentionKind, std::uint32_t, std::uint32_t, std::uint32_t, std::uint32_t>;
  std::map<Key, std::uint8_t> groups;
  for (LayerSpec& layer : spec->layers) {
    const bool mla = layer.attention == AttentionKind::kMla;
    const Key key{layer.attention, mla ? 1 : layer.heads.num_kv_heads,
                  mla ? layer.mla.kv_lora_rank + layer.mla.rope_size : layer.heads.head_size,
                  mla ? 0 : layer.heads.v_head_size, mla ? 0 : layer.heads.window};
    const std::uint8_t next = static_cast<std::uint8_t>(groups.size());
    layer.cache_group = groups.emplace(key, next).first->second;
  }
}

absl::Status ValidateSpec(const ModelSpec& spec) {
  if (spec.vocab_size == 0 || spec.hidden == 0 || spec.max_position == 0 || spec.layers.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "vocab_size ", spec.vocab_size, ", hidden ", spec.hidden, ", max_position ",
        spec.max_position, " and ", spec.layers.size(), " layers must all be above 0"));
  }
  for (std::size_t i = 0; i < spec.layers.size(); ++i) {
    QUIRE_RETURN_IF_ERROR(ValidateLayer(spec, i));
  }
  return absl::OkStatus();
}

absl::Status CheckBuilt(const ModelSpec& spec) {
  std::string unbuilt = UnbuiltNorm("final", spec.final_norm);
  if (spec.final_norm.kind == NormKind::kNone) unbuilt = "no final norm";
  if (spec.embed_scale != 1) unbuilt = absl::StrCat("embed_scale ", spec.embed_scale);
  if (spec.head_bias) unbuilt = "head_bias";
  if (spec.logit_scale != 1) unbuilt = absl::StrCat("logit_scale ", spec.logit_scale);
  if (spec.logit_softcap != 0) unbuilt = absl::StrCat("logit_softcap ", spec.logit_softcap);
  if (!unbuilt.empty()) {
    return absl::UnimplementedError(
        absl::StrCat("model with ", unbuilt, " is not supported by this version"));
  }
  for (std::size_t i = 0; i < spec.layers.size(); ++i) {
    unbuilt = UnbuiltLayer(spec.layers[i]);
    if (unbuilt.empty() &&
        !(spec.layers[i].heads.num_kv_heads == spec.layers[0].heads.num_kv_heads &&
          spec.layers[i].heads.head_size == spec.layers[0].heads.head_size)) {
      unbuilt = "another head geometry than layer 0";
    }
    if (!unbuilt.empty()) {
      return absl::UnimplementedError(
          absl::StrCat("layer ", i, " with ", unbuilt, " is not supported by this version"));
    }
  }
  return absl::OkStatus();
}

std::string DumpSpec(const ModelSpec& spec) {
  std::string text = absl::StrCat("model vocab ", spec.vocab_size, " hidden ", spec.hidden,
                                  " max_position ", spec.max_position);
  AppendSet(&text, "tied", spec.tie_embeddings);
  AppendSet(&text, absl::StrCat("embed_scale ", spec.embed_scale), spec.embed_scale != 1);
  AppendSet(&text, "head_bias", spec.head_bias);
  AppendSet(&text, absl::StrCat("logit_scale ", spec.logit_scale), spec.logit_scale != 1);
  AppendSet(&text, absl::StrCat("logit_softcap ", spec.logit_softcap), spec.logit_softcap != 0);
  for (const std::int32_t id : spec.eos_ids) absl::StrAppend(&text, " eos ", id);
  if (spec.bos_id) absl::StrAppend(&text, " bos ", *spec.bos_id);
  if (spec.pad_id) absl::StrAppend(&text, " pad ", *spec.pad_id);
  for (std::size_t i = 0; i < spec.rope_tables.size(); ++i) {
    const RopeTable& table = spec.rope_tables[i];
    absl::StrAppend(&text, "\nrope ", i, ": ", table.inv_freq.size(), " entries ",
                    table.inv_freq.front(), " to ", table.inv_freq.back(), " factor ",
                    table.attention_factor);
  }
  for (std::size_t i = 0; i < spec.layers.size();) {
    std::size_t end = i + 1;
    while (end < spec.layers.size() && spec.layers[end] == spec.layers[i]) ++end;
    absl::StrAppend(&text, "\nlayers ", i, " to ", end - 1, ": ", DumpLayer(spec.layers[i]));
    i = end;
  }
  absl::StrAppend(&text, "\nfinal norm ", DumpNorm(spec.final_norm), "\n");
  return text;
}

}  // namespace quire::models
