#include "tools/quire/spec_text.h"

#include <map>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace quire::client {
namespace {

using models::AttentionKind;
using models::AttentionSpec;
using models::LayerSpec;
using models::MlaSpec;
using models::MlpKind;
using models::MlpSpec;
using models::ModelSpec;
using models::MoeSpec;
using models::NormKind;
using models::NormSpec;

// The parts of a description, which commas join.
class Parts {
 public:
  template <typename... Args>
  Parts& Add(const Args&... args) {
    parts_.push_back(absl::StrCat(args...));
    return *this;
  }
  template <typename... Args>
  Parts& AddIf(bool condition, const Args&... args) {
    return condition ? Add(args...) : *this;
  }
  std::string Join() const { return absl::StrJoin(parts_, ", "); }

 private:
  std::vector<std::string> parts_;
};

std::string Count(std::int64_t count, absl::string_view noun) {
  return absl::StrCat(count, " ", noun, count == 1 ? "" : "s");
}

absl::string_view NormName(const NormSpec& norm) {
  return norm.kind == NormKind::kRms ? "RMSNorm" : "LayerNorm";
}

std::string DescribeBiases(const AttentionSpec& heads) {
  std::vector<absl::string_view> names;
  if (heads.q_bias) names.push_back("Q");
  if (heads.k_bias) names.push_back("K");
  if (heads.v_bias) names.push_back("V");
  if (heads.o_bias) names.push_back("output");
  return names.empty() ? "" : absl::StrCat("biases of ", absl::StrJoin(names, ", "));
}

std::string DescribeHeads(const AttentionSpec& heads) {
  const std::string biases = DescribeBiases(heads);
  Parts parts;
  parts.Add("attention with ", Count(heads.num_heads, "head"), " of size ", heads.head_size, " on ",
            Count(heads.num_kv_heads, "KV head"));
  parts.AddIf(heads.v_head_size != heads.head_size, "values of size ", heads.v_head_size);
  if (heads.rope < 0) {
    parts.Add("no positions");
  } else {
    parts.Add("rotary positions", heads.rotary_size == heads.head_size
                                      ? ""
                                      : absl::StrCat(" on ", heads.rotary_size, " columns"));
  }
  parts.AddIf(heads.window != 0, "window of ", heads.window, " tokens");
  parts.AddIf(heads.chunk != 0, "chunks of ", heads.chunk, " tokens");
  parts.AddIf(heads.qk_norm.kind != NormKind::kNone, NormName(heads.qk_norm), " of Q and K");
  parts.AddIf(heads.q_position_scale.beta != 0, "Q scaled by position");
  parts.AddIf(heads.v_norm.kind != NormKind::kNone, NormName(heads.v_norm), " of V");
  parts.AddIf(heads.v_from_k, "V is the projection of K");
  parts.AddIf(heads.has_sinks, "attention sinks");
  parts.AddIf(heads.softcap != 0, "scores capped at ", heads.softcap);
  parts.AddIf(heads.output_gate, "output gate");
  parts.AddIf(!biases.empty(), biases);
  return parts.Join();
}

std::string DescribeMla(const MlaSpec& mla) {
  Parts parts;
  parts.Add("latent attention (MLA) with ", Count(mla.num_heads, "head"));
  parts.Add("cached rows of ", mla.kv_lora_rank, " latent and ", mla.rope_size, " rotary columns");
  parts.AddIf(mla.q_lora_rank != 0, "queries of rank ", mla.q_lora_rank);
  if (mla.has_indexer()) {
    parts.Add("at most ", mla.index->topk, " keys chosen by an indexer with ",
              Count(mla.index->heads, "head"), " of size ", mla.index->size);
  } else if (mla.index) {
    parts.Add("the keys that layer ", mla.index->from_layer, " chose");
  }
  return parts.Join();
}

std::string DescribeMlp(const MlpSpec& mlp) {
  constexpr absl::string_view kActivations[] = {"SiLU", "GELU (tanh)", "GELU", "squared ReLU"};
  Parts parts;
  parts.Add(mlp.gated ? "gated " : "", kActivations[static_cast<std::size_t>(mlp.act)],
            " of inner size ", mlp.intermediate);
  parts.AddIf(mlp.gate_bias || mlp.up_bias || mlp.down_bias, "biases");
  parts.AddIf(mlp.limit != 0, "inputs limited to ", mlp.limit);
  return parts.Join();
}

std::string DescribeMoe(const MoeSpec& moe) {
  const bool is_sigmoid = moe.score == models::RouterScore::kSigmoid ||
                          moe.score == models::RouterScore::kSigmoidChosen;
  Parts parts;
  parts.Add("mixture of ", moe.num_experts, " experts, ", moe.top_k, " per token, chosen by ",
            is_sigmoid ? "sigmoid" : "softmax");
  parts.AddIf(moe.groups != 1, "from the best ", moe.groups_kept, " of ", moe.groups, " groups");
  parts.Add("each a ", DescribeMlp(moe.expert));
  if (moe.shared) parts.Add("and a shared ", DescribeMlp(*moe.shared));
  return parts.Join();
}

std::string DescribeRecurrent(const models::RecurrentSpec& recurrent) {
  Parts parts;
  parts.Add(recurrent.delta ? "gated delta rule" : "state space model", " of ", recurrent.heads,
            " heads");
  parts.Add("state ", recurrent.key_size, " x ", recurrent.value_size);
  parts.AddIf(recurrent.key_heads != recurrent.heads, recurrent.key_heads, " key heads");
  parts.Add("convolution over ", recurrent.conv_width, " tokens");
  return parts.Join();
}

std::string DescribeNorms(const LayerSpec& layer) {
  std::vector<absl::string_view> places;
  absl::string_view kind;
  const auto add = [&](const NormSpec& norm, absl::string_view place) {
    if (norm.kind == NormKind::kNone) return;
    kind = NormName(norm);
    places.push_back(place);
  };
  add(layer.attn_in, "before attention");
  add(layer.attn_out, "after attention");
  add(layer.mlp_in, "before the MLP");
  add(layer.mlp_out, "after the MLP");
  add(layer.dense_out, "after the dense MLP");
  add(layer.moe_in, "before the experts");
  add(layer.moe_out, "after the experts");
  return places.empty() ? "no norms" : absl::StrCat(kind, " ", absl::StrJoin(places, ", "));
}

std::string DescribeLayer(const LayerSpec& layer) {
  std::vector<std::string> parts;
  if (layer.attention == AttentionKind::kHeads) parts.push_back(DescribeHeads(layer.heads));
  if (layer.attention == AttentionKind::kMla) parts.push_back(DescribeMla(layer.mla));
  if (layer.attention == AttentionKind::kRecurrent) {
    parts.push_back(DescribeRecurrent(layer.recurrent));
  } else if (layer.attention == AttentionKind::kShortConv) {
    parts.push_back(absl::StrCat("short convolution over ", layer.short_conv.width, " tokens"));
  }
  if (layer.has_dense()) parts.push_back(absl::StrCat("MLP: ", DescribeMlp(layer.dense)));
  if (layer.has_moe()) parts.push_back(DescribeMoe(layer.moe));
  if (layer.input.size != 0) {
    parts.push_back(absl::StrCat("per-layer input of ", layer.input.size, " columns"));
  }
  parts.push_back(DescribeNorms(layer));
  if (layer.kv_from_layer >= 0) {
    parts.push_back(absl::StrCat("K and V of layer ", layer.kv_from_layer));
  }
  return absl::StrJoin(parts, "; ");
}

std::string DescribeModel(const ModelSpec& spec) {
  Parts parts;
  parts.Add(Count(static_cast<std::int64_t>(spec.layers.size()), "layer"));
  parts.Add("hidden size ", spec.hidden).Add("vocabulary ", spec.vocab_size);
  parts.Add("context ", spec.max_position, " tokens");
  parts.AddIf(spec.tie_embeddings, "the head shares the weights of the embedding");
  parts.AddIf(!spec.has_head, "no head");
  parts.AddIf(spec.num_labels != 0, Count(spec.num_labels, "label"));
  parts.AddIf(spec.logit_softcap != 0, "logits capped at ", spec.logit_softcap);
  return parts.Join();
}

}  // namespace

std::vector<SpecLine> DescribeSpec(const ModelSpec& spec) {
  std::vector<SpecLine> lines = {{"model", DescribeModel(spec)}};
  for (std::size_t i = 0; i < spec.layers.size();) {
    std::size_t end = i + 1;
    while (end < spec.layers.size() && spec.layers[end] == spec.layers[i]) ++end;
    lines.push_back(
        {end == i + 1 ? absl::StrCat("layer ", i) : absl::StrCat("layers ", i, "-", end - 1),
         DescribeLayer(spec.layers[i])});
    i = end;
  }
  return lines;
}

std::string DescribePages(const models::LayerGroups& layers) {
  std::map<std::uint32_t, std::uint32_t> by_window;  // number of layers of each window
  for (const models::LayerGroup& group : layers.groups) by_window[group.window] += group.num_layers;
  std::vector<std::string> parts;
  for (const auto& [window, count] : by_window) {
    parts.push_back(
        absl::StrCat(Count(count, "layer"), count == 1 ? " keeps " : " keep ",
                     window == 0 ? "all tokens" : absl::StrCat("the last ", window, " tokens")));
  }
  return absl::StrCat("a page holds ",
                      Count(layers.slots, models::HasEqualRows(layers) ? "layer" : "slot"), "; ",
                      absl::StrJoin(parts, ", "));
}

}  // namespace quire::client
