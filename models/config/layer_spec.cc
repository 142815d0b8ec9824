#include "models/config/layer_spec.h"

#include <algorithm>
#include <map>
#include <span>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "kernels/kv_store/latent_store.h"
#include "kernels/kv_store/qkv_store.h"
#include "kernels/sparse/index_score.h"

namespace quire::models {
namespace {

// Returns an error whose message begins with the layer, such as "layer 3".
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
  if (heads.window != 0 && heads.chunk != 0) {
    return Invalid(index, absl::StrCat("window is ", heads.window, " and chunk is ", heads.chunk,
                                       ", one of them must be 0"));
  }
  if (heads.q_position_scale.beta != 0 && heads.q_position_scale.period == 0) {
    return Invalid(index, "period of q_position_scale is 0, it must be above 0");
  }
  if (heads.softcap != 0 && heads.has_sinks) {
    return Invalid(index, "softcap and has_sinks are set, only one of them is allowed");
  }
  if (heads.rope < 0) return absl::OkStatus();
  if (static_cast<std::size_t>(heads.rope) >= spec.rope_tables.size()) {
    return Invalid(index, absl::StrCat("rope table is ", heads.rope,
                                       ", the number of rope tables is ", spec.rope_tables.size()));
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

absl::Status ValidateIndex(const ModelSpec& spec, std::size_t layer, const MlaSpec& mla) {
  const IndexSpec& index = *mla.index;
  if (index.heads == 0 || index.topk == 0) {
    return Invalid(layer, absl::StrCat("index heads is ", index.heads, " and index topk is ",
                                       index.topk, ", both must be at least 1"));
  }
  if (index.size < mla.rope_size) {
    return Invalid(layer, absl::StrCat("index size is ", index.size,
                                       ", it must be at least the rope size ", mla.rope_size));
  }
  if (mla.q_lora_rank == 0) {
    return Invalid(layer, "q_lora_rank is 0, an indexer needs the query latent");
  }
  if (mla.rope < 0) {
    return Invalid(layer, "MLA rope is -1, an indexer needs the rope table of the layer");
  }
  if (index.is_own()) return absl::OkStatus();
  // A selection is kept until the next layer with an indexer.
  std::int64_t source = static_cast<std::int64_t>(layer) - 1;
  const auto layer_at = [&](std::int64_t i) -> const LayerSpec& {
    return spec.layers[static_cast<std::size_t>(i)];
  };
  while (source >= 0 && !layer_at(source).mla.has_indexer()) --source;
  IndexSpec own = index;
  own.from_layer = -1;
  if (index.from_layer != source || *layer_at(source).mla.index != own) {
    return Invalid(layer,
                   absl::StrCat("index from_layer is ", index.from_layer,
                                ", it must be the last earlier layer with an indexer, ", source,
                                ", and both IndexSpecs must be equal except for from_layer"));
  }
  return absl::OkStatus();
}

absl::Status ValidateMla(const ModelSpec& spec, std::size_t index, const MlaSpec& mla) {
  if (mla.num_heads == 0 || mla.kv_lora_rank == 0 || mla.nope_size == 0 || mla.rope_size == 0 ||
      mla.v_size == 0) {
    return Invalid(index, absl::StrCat("MLA with ", mla.num_heads, " heads, rank ",
                                       mla.kv_lora_rank, ", sizes ", mla.nope_size, ", ",
                                       mla.rope_size, " and ", mla.v_size, " must all be above 0"));
  }
  if (mla.rope >= 0 &&
      (static_cast<std::size_t>(mla.rope) >= spec.rope_tables.size() ||
       2 * spec.rope_tables[static_cast<std::size_t>(mla.rope)].inv_freq.size() != mla.rope_size)) {
    return Invalid(index, absl::StrCat("MLA rope is ", mla.rope, ", it must be below ",
                                       spec.rope_tables.size(), ", and the rope table must have ",
                                       mla.rope_size / 2, " entries"));
  }
  return mla.index ? ValidateIndex(spec, index, mla) : absl::OkStatus();
}

absl::Status ValidateRecurrent(std::size_t index, const RecurrentSpec& recurrent) {
  if (recurrent.conv_width == 0 || recurrent.conv_width > kMaxConvWidth) {
    return Invalid(index, absl::StrCat("conv_width is ", recurrent.conv_width, ", it must be 1 to ",
                                       kMaxConvWidth));
  }
  if (recurrent.heads == 0 || recurrent.key_heads == 0 ||
      recurrent.heads % recurrent.key_heads != 0) {
    return Invalid(index, absl::StrCat("recurrent heads is ", recurrent.heads,
                                       ", it must be a multiple of key_heads ", recurrent.key_heads,
                                       ", both above 0"));
  }
  for (const auto& [name, size] :
       {std::pair("key_size", recurrent.key_size), std::pair("value_size", recurrent.value_size)}) {
    if (size == 0 || size > kMaxStateColumns) {
      return Invalid(index, absl::StrCat("recurrent ", name, " is ", size, ", it must be 1 to ",
                                         kMaxStateColumns));
    }
  }
  if (recurrent.conv_channels != 2 * recurrent.key_columns() + recurrent.value_columns()) {
    return Invalid(index,
                   absl::StrCat("conv_channels is ", recurrent.conv_channels, ", it must be ",
                                2 * recurrent.key_columns() + recurrent.value_columns(),
                                ", the columns of q, k and v"));
  }
  if (!recurrent.delta && recurrent.decay == DecayKind::kPerChannel) {
    return Invalid(index,
                   "decay is per channel, it must be per head in a recurrent layer without delta");
  }
  if (!(recurrent.dt_min <= recurrent.dt_max)) {
    return Invalid(index, absl::StrCat("dt_min is ", recurrent.dt_min,
                                       ", it must be at most dt_max ", recurrent.dt_max));
  }
  if (recurrent.norm_groups != 0 && recurrent.value_columns() % recurrent.norm_groups != 0) {
    return Invalid(index,
                   absl::StrCat("norm_groups is ", recurrent.norm_groups,
                                ", it must divide heads * value_size ", recurrent.value_columns()));
  }
  return absl::OkStatus();
}

absl::Status ValidateMlp(std::size_t index, const MlpSpec& mlp) {
  if (mlp.intermediate == 0) return Invalid(index, "intermediate is 0, it must be at least 1");
  if (!mlp.gated && (mlp.gate_bias || mlp.limit != 0 || mlp.up_offset != 0)) {
    return Invalid(
        index, absl::StrCat("gate_bias ", mlp.gate_bias, ", limit ", mlp.limit, " and up_offset ",
                            mlp.up_offset, " must be 0 in an MLP without gate"));
  }
  return absl::OkStatus();
}

absl::Status ValidateMoe(std::size_t index, const MoeSpec& moe) {
  if (moe.num_experts == 0 || moe.groups == 0 || moe.num_experts % moe.groups != 0) {
    return Invalid(index, absl::StrCat("groups is ", moe.groups, ", it must divide num_experts ",
                                       moe.num_experts));
  }
  if (moe.groups_kept == 0 || moe.groups_kept > moe.groups) {
    return Invalid(
        index, absl::StrCat("groups_kept is ", moe.groups_kept, ", it must be 1 to ", moe.groups));
  }
  const std::uint32_t per_group = moe.num_experts / moe.groups;
  if (moe.top_k == 0 || moe.top_k > moe.groups_kept * per_group) {
    return Invalid(index, absl::StrCat("top_k is ", moe.top_k, ", it must be 1 to ",
                                       moe.groups_kept * per_group));
  }
  if (moe.groups > 1 && moe.group_score == GroupScore::kTop2Sum && per_group < 2) {
    return Invalid(index, "groups have 1 expert, group_score kTop2Sum needs at least 2");
  }
  QUIRE_RETURN_IF_ERROR(ValidateMlp(index, moe.expert));
  return moe.shared ? ValidateMlp(index, *moe.shared) : absl::OkStatus();
}

// Checks that a layer has at least one branch, and norms only for branches that it has.
absl::Status ValidateBranches(std::size_t index, const LayerSpec& layer) {
  const bool has_attention = layer.attention != AttentionKind::kNone;
  const bool has_mlp = layer.mlp != MlpKind::kNone;
  const bool has_both = layer.mlp == MlpKind::kDenseAndMoe;
  if (!has_attention && !has_mlp) return Invalid(index, "there is neither attention nor an MLP");
  const struct {
    absl::string_view name;
    const NormSpec& norm;
    bool has_branch;
  } norms[] = {{"attn_in", layer.attn_in, has_attention},
               {"attn_out", layer.attn_out, has_attention},
               {"mlp_in", layer.mlp_in, has_mlp},
               {"mlp_out", layer.mlp_out, has_mlp},
               {"dense_out", layer.dense_out, has_both},
               {"moe_in", layer.moe_in, has_both},
               {"moe_out", layer.moe_out, has_both},
               {"input.norm", layer.input.norm, layer.input.size > 0}};
  for (const auto& [name, norm, has_branch] : norms) {
    if (!has_branch && norm.kind != NormKind::kNone) {
      return Invalid(
          index,
          absl::StrCat(name, " is set, it must be kNone because the layer has no such branch"));
    }
  }
  return absl::OkStatus();
}

// A layer with kv_from_layer must have the rope and the mask of its source layer. The source layer
// rotated the K rows, and its mask decides how long pages keep them.
absl::Status ValidateSharedKv(const ModelSpec& spec, std::size_t index) {
  const LayerSpec& layer = spec.layers[index];
  if (layer.kv_from_layer < 0) return absl::OkStatus();
  const auto number = static_cast<std::size_t>(layer.kv_from_layer);
  if (number >= index || spec.layers[number].cache_group != layer.cache_group ||
      spec.layers[number].kv_from_layer >= 0) {
    return Invalid(index, absl::StrCat("kv_from_layer is ", layer.kv_from_layer,
                                       ", it must be an earlier layer of the same cache group ",
                                       "that stores K and V"));
  }
  const AttentionSpec& own = layer.heads;
  const AttentionSpec& source = spec.layers[number].heads;
  const std::tuple<absl::string_view, std::int64_t, std::int64_t> fields[] = {
      {"rope", own.rope, source.rope},
      {"rope_style", static_cast<std::int64_t>(own.rope_style),
       static_cast<std::int64_t>(source.rope_style)},
      {"rotary_size", own.rotary_size, source.rotary_size},
      {"rotary_first", own.rotary_first, source.rotary_first},
      {"chunk", own.chunk, source.chunk},
      {"window", own.window, source.window}};
  for (const auto& [name, value, wanted] : fields) {
    if (value == wanted) continue;
    return Invalid(index, absl::StrCat(name, " is ", value, ", it must be ", wanted,
                                       " as in layer ", number, ", which is its kv_from_layer"));
  }
  return absl::OkStatus();
}

absl::Status ValidateLayer(const ModelSpec& spec, std::size_t index) {
  const LayerSpec& layer = spec.layers[index];
  QUIRE_RETURN_IF_ERROR(ValidateBranches(index, layer));
  if (layer.attention == AttentionKind::kHeads) {
    QUIRE_RETURN_IF_ERROR(ValidateHeads(spec, index, layer.heads));
  }
  if (layer.attention == AttentionKind::kMla) {
    QUIRE_RETURN_IF_ERROR(ValidateMla(spec, index, layer.mla));
  }
  if (layer.attention != AttentionKind::kMla && layer.mla.index) {
    return Invalid(index, "mla.index is set in a layer without MLA");
  }
  if (layer.attention == AttentionKind::kRecurrent) {
    QUIRE_RETURN_IF_ERROR(ValidateRecurrent(index, layer.recurrent));
  }
  const std::uint32_t width = layer.short_conv.width;
  if (layer.attention == AttentionKind::kShortConv && (width < 2 || width > kMaxConvWidth)) {
    return Invalid(
        index, absl::StrCat("short_conv width is ", width, ", it must be 2 to ", kMaxConvWidth));
  }
  if (layer.has_moe()) QUIRE_RETURN_IF_ERROR(ValidateMoe(index, layer.moe));
  if (layer.has_dense()) QUIRE_RETURN_IF_ERROR(ValidateMlp(index, layer.dense));
  if (layer.input.size != spec.layer_inputs.size) {
    return Invalid(
        index, absl::StrCat("input.size is ", layer.input.size,
                            ", it must be the model's layer_inputs.size ", spec.layer_inputs.size));
  }
  return ValidateSharedKv(spec, index);
}

// A knob that no device or only the CPU supports.
struct Knob {
  absl::string_view name;
  bool used;
  bool on_cpu = false;  // supported on the CPU, not on CUDA
};

// Returns the first knob that is used and not supported on `device`, or an empty string.
std::string FirstUnsupported(std::span<const Knob> knobs, DeviceKind device) {
  for (const Knob& knob : knobs) {
    if (knob.used && !(knob.on_cpu && device == DeviceKind::kCpu)) return std::string(knob.name);
  }
  return "";
}

bool Has(const NormSpec& norm) {
  return norm.kind != NormKind::kNone;
}

// Offsets are not checked, because they are added to the weights at load time.
std::string UnsupportedNorm(absl::string_view slot, const NormSpec& norm) {
  if (norm.kind == NormKind::kLayer) return absl::StrCat(slot, " LayerNorm");
  if (Has(norm) && (!norm.has_weight || norm.has_bias)) {
    return absl::StrCat(slot, " without weight or with bias");
  }
  return "";
}

// True if the norm of q and k gives the same result before and after the rotation.
bool NormCommutesWithRope(const ModelSpec& spec, const AttentionSpec& heads) {
  if (heads.rope < 0) return true;
  return !heads.qk_norm.has_weight &&
         spec.rope_tables[static_cast<std::size_t>(heads.rope)].attention_factor == 1;
}

std::string UnsupportedAttention(const ModelSpec& spec, const AttentionSpec& heads,
                                 DeviceKind device) {
  const bool norms_rotated =
      heads.qk_norm_after_rope && Has(heads.qk_norm) && !NormCommutesWithRope(spec, heads);
  const Knob knobs[] = {
      {"v_head_size different from head_size", heads.v_head_size != heads.head_size},
      // Kernels of a GPU write four columns at a time.
      {"a head_size above 512 or not a multiple of 4",
       heads.head_size > kernels::kMaxQkvColumns || heads.head_size % 4 != 0, true},
      {"q_bias, k_bias and v_bias that differ",
       heads.q_bias != heads.k_bias || heads.q_bias != heads.v_bias},
      {"qk_norm_after_rope with weights or with an attention factor of rope", norms_rotated},
      {"v_norm that is not an RMS norm without weight",
       Has(heads.v_norm) && (heads.v_norm.kind != NormKind::kRms || heads.v_norm.has_weight)},
      {"v_from_k with an output_gate", heads.v_from_k && heads.output_gate},
  };
  std::string unsupported = FirstUnsupported(knobs, device);
  NormSpec qk_norm = heads.qk_norm;
  qk_norm.has_weight = true;  // supported with and without weight
  return unsupported.empty() ? UnsupportedNorm("qk_norm", qk_norm) : unsupported;
}

std::string UnsupportedMla(const MlaSpec& mla, DeviceKind device) {
  const auto is_uneven = [](std::uint32_t columns) { return columns % 8 != 0; };
  const Knob knobs[] = {
      {"MLA cache rows of more than 576 columns, kv_lora_rank + qk_rope_head_dim",
       mla.kv_lora_rank + mla.rope_size > kernels::kMaxLatentColumns, true},
      {"a qk_rope_head_dim above 128", mla.rope_size > kernels::kMaxLatentRope, true},
      {"an MLA rank or head dim that is not a multiple of 8",
       is_uneven(mla.q_lora_rank) || is_uneven(mla.kv_lora_rank) || is_uneven(mla.nope_size) ||
           is_uneven(mla.rope_size) || is_uneven(mla.v_size),
       true},
      {"an indexer of more than 64 heads or more than 128 columns",
       mla.has_indexer() && (mla.index->heads > kernels::kMaxGpuIndexHeads ||
                             mla.index->size > kernels::kMaxGpuIndexSize),
       true},
      {"an index_head_dim that is not a multiple of 8",
       mla.has_indexer() && is_uneven(mla.index->size), true},
  };
  return FirstUnsupported(knobs, device);
}

std::string UnsupportedMlp(const MlpSpec& mlp) {
  return mlp.gated && mlp.gate_bias != mlp.up_bias ? "gate_bias and up_bias that differ" : "";
}

// Maximum number of floats that the router keeps in shared memory of a GPU: two per expert and one
// per group.
constexpr std::uint32_t kMaxRouterFloats = 3072;

std::string UnsupportedMoe(const MoeSpec& moe, DeviceKind device) {
  const Knob knobs[] = {
      {"2 * num_experts + groups above 3072", 2 * moe.num_experts + moe.groups > kMaxRouterFloats,
       true},
  };
  std::string unsupported = FirstUnsupported(knobs, device);
  if (unsupported.empty()) unsupported = UnsupportedNorm("router_norm", moe.router_norm);
  if (unsupported.empty()) unsupported = UnsupportedMlp(moe.expert);
  if (unsupported.empty() && moe.shared) unsupported = UnsupportedMlp(*moe.shared);
  return unsupported;
}

std::string UnsupportedLayer(const ModelSpec& spec, const LayerSpec& layer, DeviceKind device) {
  const Knob knobs[] = {
      {"kv_from_layer without heads",
       layer.kv_from_layer >= 0 && layer.attention != AttentionKind::kHeads},
  };
  std::string unsupported = FirstUnsupported(knobs, device);
  const std::pair<absl::string_view, const NormSpec*> norms[] = {
      {"attn_in", &layer.attn_in}, {"attn_out", &layer.attn_out},   {"mlp_in", &layer.mlp_in},
      {"mlp_out", &layer.mlp_out}, {"dense_out", &layer.dense_out}, {"moe_in", &layer.moe_in},
      {"moe_out", &layer.moe_out}, {"input", &layer.input.norm}};
  for (const auto& [slot, norm] : norms) {
    if (unsupported.empty()) unsupported = UnsupportedNorm(slot, *norm);
  }
  if (unsupported.empty() && layer.attention == AttentionKind::kHeads) {
    unsupported = UnsupportedAttention(spec, layer.heads, device);
  }
  if (unsupported.empty() && layer.attention == AttentionKind::kMla) {
    unsupported = UnsupportedMla(layer.mla, device);
  }
  if (unsupported.empty() && layer.has_moe()) unsupported = UnsupportedMoe(layer.moe, device);
  if (unsupported.empty() && layer.mlp != MlpKind::kMoe) {
    unsupported = UnsupportedMlp(layer.dense);
  }
  return unsupported;
}

// Returns how the KV rows of a layer differ from other layers in an unsupported way, or an empty
// string. Head sizes may differ if they are multiples of the smallest one (layer_groups.h).
std::string UnsupportedRows(const ModelSpec& spec, const LayerSpec& layer) {
  if (!layer.has_kv()) return "";
  const LayerSpec& first = spec.first_kv_layer();
  const bool has_equal_heads = layer.heads.num_kv_heads == first.heads.num_kv_heads &&
                               layer.heads.head_size == first.heads.head_size;
  if (layer.attention != first.attention || layer.mla.kv_lora_rank != first.mla.kv_lora_rank ||
      layer.mla.rope_size != first.mla.rope_size ||
      (!has_equal_heads && layer.attention != AttentionKind::kHeads)) {
    return absl::StrCat("another head geometry than layer ", &first - spec.layers.data());
  }
  if (layer.attention != AttentionKind::kHeads) return "";
  std::uint32_t smallest = layer.heads.head_size;
  for (const LayerSpec& other : spec.layers) {
    if (other.has_kv()) smallest = std::min(smallest, other.heads.head_size);
  }
  if (smallest == 0 || layer.heads.head_size % smallest == 0) return "";
  return absl::StrCat("head_size ", layer.heads.head_size, ", not a multiple of the smallest one, ",
                      smallest, ",");
}

// Returns the first unsupported knob of the model outside its layers, or an empty string.
std::string UnsupportedEnds(const ModelSpec& spec, DeviceKind device) {
  const Knob knobs[] = {
      {"no final norm", !Has(spec.final_norm)},
      {"no layer with keys and values",
       std::none_of(spec.layers.begin(), spec.layers.end(),
                    [](const LayerSpec& layer) { return layer.has_kv(); })},
  };
  std::string unsupported = FirstUnsupported(knobs, device);
  if (unsupported.empty()) unsupported = UnsupportedNorm("layer_inputs", spec.layer_inputs.norm);
  return unsupported.empty() ? UnsupportedNorm("final", spec.final_norm) : unsupported;
}

// Returns the end of the message about an unsupported knob. On a GPU the message names the GPU,
// because the CPU supports more knobs.
absl::string_view UnsupportedSuffix(DeviceKind device) {
  return device == DeviceKind::kCpu ? "by this version" : "on a GPU by this version";
}

std::string DumpNorm(const NormSpec& norm) {
  if (norm.kind == NormKind::kNone) return "none";
  std::string text = absl::StrCat(norm.kind == NormKind::kRms ? "rms" : "layer", " eps ", norm.eps);
  if (norm.weight_offset != 0) absl::StrAppend(&text, " offset ", norm.weight_offset);
  if (norm.weight_scale != 1) absl::StrAppend(&text, " weight_scale ", norm.weight_scale);
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
  AppendSet(&text, absl::StrCat("qk_norm ", DumpNorm(heads.qk_norm)),
            heads.qk_norm.kind != NormKind::kNone);
  AppendSet(&text, "whole", heads.qk_norm_scope == QkNormScope::kWhole);
  AppendSet(&text, "qk_norm_after_rope", heads.qk_norm_after_rope);
  AppendSet(&text, absl::StrCat("v_norm ", DumpNorm(heads.v_norm)),
            heads.v_norm.kind != NormKind::kNone);
  AppendSet(&text, "v_from_k", heads.v_from_k);
  const PositionScale& scale = heads.q_position_scale;
  AppendSet(&text,
            absl::StrCat("position_scale ", scale.beta, " ", scale.offset, "/", scale.period),
            scale.beta != 0);
  AppendSet(&text, absl::StrCat("softcap ", heads.softcap), heads.softcap != 0);
  AppendSet(&text, absl::StrCat("window ", heads.window), heads.window != 0);
  AppendSet(&text, absl::StrCat("chunk ", heads.chunk), heads.chunk != 0);
  AppendSet(&text, "sinks", heads.has_sinks);
  AppendSet(&text, "output_gate in q_proj", heads.output_gate);
  return text;
}

constexpr const char* kActs[] = {"silu", "gelu_tanh", "gelu_erf", "relu2"};

std::string DumpMlp(const MlpSpec& mlp) {
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

std::string DumpIndex(const IndexSpec& index) {
  return absl::StrCat(" index top ", index.topk, " by ", index.heads, " heads of ", index.size,
                      index.rope_style == RopeStyle::kHalf ? " half" : " interleaved", " eps ",
                      index.norm_eps,
                      index.is_own() ? "" : absl::StrCat(" from_layer ", index.from_layer));
}

std::string DumpMla(const MlaSpec& mla) {
  std::string text =
      absl::StrCat("mla heads ", mla.num_heads, " q_rank ", mla.q_lora_rank, " rank ",
                   mla.kv_lora_rank, " nope ", mla.nope_size, " rope ", mla.rope_size,
                   mla.rope < 0                         ? " unrotated v "
                   : mla.rope_style == RopeStyle::kHalf ? " half v "
                                                        : " interleaved v ",
                   mla.v_size, " scale ", mla.scale, " latent_eps ", mla.latent_eps);
  AppendSet(&text, "qa_bias", mla.qa_bias);
  AppendSet(&text, "kva_bias", mla.kva_bias);
  AppendSet(&text, "o_bias", mla.o_bias);
  if (mla.index) absl::StrAppend(&text, DumpIndex(*mla.index));
  return text;
}

std::string DumpRecurrent(const RecurrentSpec& recurrent) {
  constexpr const char* kGates[] = {"norm silu", "norm sigmoid", "silu norm"};
  std::string text =
      absl::StrCat(recurrent.delta ? "delta" : "ssd", " heads ", recurrent.heads, " keys ",
                   recurrent.key_heads, " state ", recurrent.key_size, " x ", recurrent.value_size,
                   " conv ", recurrent.conv_channels, " x ", recurrent.conv_width, " ",
                   kGates[static_cast<std::size_t>(recurrent.gate)], " eps ", recurrent.norm_eps);
  AppendSet(&text, "conv_bias", recurrent.conv_bias);
  AppendSet(&text, "decay per channel", recurrent.decay == DecayKind::kPerChannel);
  AppendSet(&text, absl::StrCat("qk_l2_eps ", recurrent.qk_l2_eps), recurrent.qk_l2_eps != 0);
  AppendSet(
      &text, absl::StrCat("dt ", recurrent.dt_min, " to ", recurrent.dt_max),
      recurrent.dt_min != RecurrentSpec().dt_min || recurrent.dt_max != RecurrentSpec().dt_max);
  AppendSet(&text, "skip", recurrent.skip);
  AppendSet(&text, "tiles_key_heads", recurrent.tiles_key_heads);
  AppendSet(&text, absl::StrCat("decay_rank ", recurrent.decay_rank), recurrent.decay_rank != 0);
  AppendSet(&text, absl::StrCat("gate_rank ", recurrent.gate_rank), recurrent.gate_rank != 0);
  AppendSet(&text, absl::StrCat("norm_groups ", recurrent.norm_groups), recurrent.norm_groups != 0);
  return text;
}

std::string DumpMoe(const MoeSpec& moe) {
  constexpr const char* kScores[] = {"softmax_all", "sigmoid", "softmax_chosen", "sigmoid_chosen"};
  std::string text =
      absl::StrCat("experts ", moe.top_k, " of ", moe.num_experts, " ",
                   kScores[static_cast<std::size_t>(moe.score)], " ", DumpMlp(moe.expert));
  AppendSet(&text, "router_bias", moe.router_bias);
  AppendSet(&text, "choice_bias", moe.choice_bias);
  AppendSet(&text,
            absl::StrCat("groups ", moe.groups_kept, " of ", moe.groups, " by ",
                         moe.group_score == GroupScore::kMax ? "max" : "top2_sum"),
            moe.groups != 1);
  AppendSet(&text, absl::StrCat("renormalize eps ", moe.renorm_eps), moe.renormalize);
  AppendSet(&text, absl::StrCat("weight_scale ", moe.weight_scale), moe.weight_scale != 1);
  AppendSet(&text, "weight_on_input", moe.weight_on_input);
  AppendSet(&text, absl::StrCat("latent ", moe.latent), moe.latent != 0);
  if (moe.shared) absl::StrAppend(&text, " shared ", DumpMlp(*moe.shared));
  AppendSet(&text, "shared_gate", moe.shared_gate);
  AppendSet(&text, absl::StrCat("router_norm ", DumpNorm(moe.router_norm)), Has(moe.router_norm));
  AppendSet(&text, "expert_scale", moe.expert_scale);
  return text;
}

std::string DumpLayer(const LayerSpec& layer) {
  std::string text = absl::StrCat("sequential; attn_in ", DumpNorm(layer.attn_in), "; ");
  if (layer.attention == AttentionKind::kHeads) {
    text += DumpHeads(layer.heads);
  } else if (layer.attention == AttentionKind::kMla) {
    text += DumpMla(layer.mla);
  } else if (layer.attention == AttentionKind::kRecurrent) {
    text += DumpRecurrent(layer.recurrent);
  } else if (layer.attention == AttentionKind::kShortConv) {
    absl::StrAppend(&text, "short conv ", layer.short_conv.width);
  } else {
    text += "no attention";
  }
  absl::StrAppend(&text, "; attn_out ", DumpNorm(layer.attn_out), "; mlp_in ",
                  DumpNorm(layer.mlp_in), "; ");
  if (layer.mlp == MlpKind::kDense) {
    text += DumpMlp(layer.dense);
  } else if (layer.mlp == MlpKind::kMoe) {
    text += DumpMoe(layer.moe);
  } else if (layer.mlp == MlpKind::kDenseAndMoe) {
    absl::StrAppend(&text, DumpMlp(layer.dense), "; dense_out ", DumpNorm(layer.dense_out),
                    "; moe_in ", DumpNorm(layer.moe_in), "; ", DumpMoe(layer.moe), "; moe_out ",
                    DumpNorm(layer.moe_out));
  } else {
    text += "no mlp";
  }
  absl::StrAppend(&text, "; mlp_out ", DumpNorm(layer.mlp_out), "; group ", layer.cache_group);
  AppendSet(&text, absl::StrCat("residual_scale ", layer.residual_scale),
            layer.residual_scale != 1);
  AppendSet(&text, absl::StrCat("output_scale ", layer.output_scale), layer.output_scale != 1);
  AppendSet(&text, "output_scale tensor", layer.has_output_scale);
  AppendSet(&text,
            absl::StrCat("input ", layer.input.size, " ",
                         kActs[static_cast<std::size_t>(layer.input.act)], " norm ",
                         DumpNorm(layer.input.norm)),
            layer.input.size > 0);
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
                  mla ? 0 : layer.heads.v_head_size,
                  mla ? 0 : std::max(layer.heads.window, layer.heads.chunk)};
    const std::uint8_t next = static_cast<std::uint8_t>(groups.size());
    layer.cache_group = groups.emplace(key, next).first->second;
  }
}

std::uint32_t IndexSize(const ModelSpec& spec) {
  for (const LayerSpec& layer : spec.layers) {
    if (layer.mla.has_indexer()) return layer.mla.index->size;
  }
  return 0;
}

absl::Status ValidateSpec(const ModelSpec& spec) {
  if (spec.vocab_size == 0 || spec.hidden == 0 || spec.max_position == 0 || spec.layers.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "vocab_size ", spec.vocab_size, ", hidden ", spec.hidden, ", max_position ",
        spec.max_position, " and ", spec.layers.size(), " layers must all be above 0"));
  }
  const PerLayerInputSpec& inputs = spec.layer_inputs;
  if (inputs.size > 0 && (inputs.vocab < spec.vocab_size || inputs.projection_scale == 0)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "layer_inputs.vocab is ", inputs.vocab, ", it must be at least vocab_size ",
        spec.vocab_size, ", and projection_scale ", inputs.projection_scale, " must not be 0"));
  }
  for (std::size_t i = 0; i < spec.layers.size(); ++i) {
    QUIRE_RETURN_IF_ERROR(ValidateLayer(spec, i));
  }
  return absl::OkStatus();
}

absl::Status CheckSupported(const ModelSpec& spec, DeviceKind device) {
  std::string unsupported = UnsupportedEnds(spec, device);
  if (!unsupported.empty()) {
    return absl::UnimplementedError(
        absl::StrCat("model with ", unsupported, " is not supported ", UnsupportedSuffix(device)));
  }
  for (std::size_t i = 0; i < spec.layers.size(); ++i) {
    const LayerSpec& layer = spec.layers[i];
    unsupported = UnsupportedLayer(spec, layer, device);
    if (unsupported.empty() && layer.mla.has_indexer() &&
        layer.mla.index->size != IndexSize(spec)) {
      unsupported = "another index size than earlier layers";
    }
    if (unsupported.empty()) unsupported = UnsupportedRows(spec, layer);
    if (!unsupported.empty()) {
      return absl::UnimplementedError(absl::StrCat(
          "layer ", i, " with ", unsupported, " is not supported ", UnsupportedSuffix(device)));
    }
  }
  return absl::OkStatus();
}

std::string DumpSpec(const ModelSpec& spec) {
  std::string text = absl::StrCat("model vocab ", spec.vocab_size, " hidden ", spec.hidden,
                                  " max_position ", spec.max_position);
  AppendSet(&text, "no head", !spec.has_head);
  AppendSet(&text, absl::StrCat("labels ", spec.num_labels), spec.num_labels != 0);
  AppendSet(&text, "tied", spec.tie_embeddings);
  AppendSet(&text, absl::StrCat("embed_scale ", spec.embed_scale), spec.embed_scale != 1);
  const PerLayerInputSpec& inputs = spec.layer_inputs;
  AppendSet(&text,
            absl::StrCat("layer_inputs ", inputs.size, " vocab ", inputs.vocab, " scales ",
                         inputs.embed_scale, " ", inputs.projection_scale, " ", inputs.scale,
                         " norm ", DumpNorm(inputs.norm)),
            inputs.size > 0);
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
