#pragma once

// The tensors of a layer, one table per kind of block. A row states the name of the tensor in
// checkpoints, its shape, how it is stored and how it is divided among devices. The code that finds
// and loads weights, makes dummy and divided checkpoints, plans memory and writes reports iterates
// over these tables.
//
// A new tensor is added in these places and in the kernel call that reads it:
//   1. a field of TensorNames (tensor_names.h): its name in checkpoints;
//   2. a member of LayerTensors, MlaTensors, RecurrentTensors, ShortConvTensors or MoeTensors: its
//      place in memory;
//   3. a row of the block's table.

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/functional/function_ref.h"
#include "absl/strings/string_view.h"
#include "models/config/layer_spec.h"
#include "models/config/tensor_names.h"

namespace quire::models {

// The parts of a layer. Every layer has the norms of its branches, and an attention block, an MLP
// block or both.
enum class BlockKind : std::uint8_t {
  kNorms,
  kAttention,
  kMla,
  kRecurrent,
  kShortConv,
  kMlp,
  kMoe,
  kInput
};
inline constexpr int kNumBlockKinds = 8;

// Returns the blocks that a layer computes, in order: one or two. A dense MLP and experts side by
// side are one block, kMoe. Layers with LayerSpec::input compute kInput after these blocks.
absl::InlinedVector<BlockKind, 2> BlocksOf(const LayerSpec& layer);
// True if the layer has tensors of the block.
bool HasBlock(const LayerSpec& layer, BlockKind block);

// A dimension of a tensor.
enum class Dim : std::uint8_t {
  kNone,  // 0
  kOne,
  kHidden,
  kThreeHidden,
  kHeads,
  kHeadSize,
  kQueries,    // query heads * head size
  kQueryRows,  // kQueries, twice with an output gate in the query projection
  kKeys,       // KV heads * head size
  kQkv,
  kInner,  // intermediate size of the MLP
  kTwoInner,
  kMlaQueries,
  kMlaQueryRank,
  kMlaRank,
  kMlaRow,  // rank and rotated columns: a cached row
  kMlaNope,
  kMlaValue,
  kMlaKeysAndValues,  // columns of all heads
  kMlaValues,         // columns of all heads
  kRecurrentHeads,
  kRecurrentDecays,    // RecurrentSpec::decay_columns
  kRecurrentRates,     // b and a
  kRecurrentValues,    // columns of all heads
  kRecurrentChannels,  // channels of the convolution
  kRecurrentChannelsAndGates,
  kRecurrentIn,    // RecurrentSpec::in_columns
  kRecurrentKeys,  // columns of all key heads
  kRecurrentGateRank,
  kRecurrentDecayRank,
  kRecurrentTaps,
  kRecurrentNorm,
  kIndexHeads,
  kIndexSize,
  kIndexQueries,  // columns of all heads
  kShortConvTaps,
  kLayerInput,  // columns of a layer's own input
  kExperts,
  kExpertInner,
  kTwoExpertInner,
  kExpertInput,  // hidden, or the latent width
  kLatent,
  kSharedInner,
  kTwoSharedInner,
};

// The size of a dimension, and the keys of config.json that it is computed from.
struct Extent {
  std::int64_t size;
  absl::string_view keys;
};
Extent ExtentOf(Dim dim, std::uint32_t hidden, const LayerSpec& layer);

enum class TensorKind : std::uint8_t {
  kNorm,         // NAME.weight [rows], where the layer has the norm
  kVector,       // NAME [rows] or, with columns, [rows, columns]; dimensions of 1 are optional
  kMatrix,       // NAME.weight [rows, columns], NAME.bias [rows]
  kUnconverted,  // like kMatrix, but model.quantization does not apply
  // NAME.weight [heads * rows of a head, columns], divided into one matrix per head. In families
  // that name a stack, STACK.weight [heads, outputs, inputs] instead.
  kHeadMatrices,
  kExpertMatrices  // one matrix per expert, stored as TensorNames states
};

// How a tensor is divided among devices that share a model.
enum class Split : std::uint8_t { kReplicated, kRows, kColumns };

using LayerPredicate = bool (*)(const LayerSpec&);

// Adjacent rows of a tensor.
struct RowRange {
  std::int64_t first = 0;
  std::int64_t count = 0;
};

// A tensor in checkpoints.
struct PartInfo {
  absl::string_view TensorNames::*name = nullptr;  // null: no such part
  Dim rows = Dim::kNone;
  LayerPredicate has_bias = nullptr;  // null: the tensor has no bias
  // The stack of all experts of kExpertMatrices, or of all matrices of kHeadMatrices.
  absl::string_view TensorNames::*stack_name = nullptr;
  // Returns the rows of the tensor that belong to the matrix in memory, in the order of that
  // matrix. An empty result means that the layer has no such part. Null: all rows as stored.
  std::vector<RowRange> (*pick)(const LayerSpec&) = nullptr;
};

// The rows of each head that form one matrix of a kHeadMatrices tensor.
struct HeadRows {
  absl::string_view piece = "";  // name of the part in messages
  Dim first = Dim::kNone;
  Dim rows = Dim::kNone;
  bool is_transposed = false;
};

// A row of a table, without its place in memory.
struct TensorInfo {
  absl::string_view label = "";  // names the matrices in packed files; empty for vectors
  TensorKind kind = TensorKind::kMatrix;
  // Matrices that share an input, concatenated by rows. A family lacks the parts whose names are
  // empty.
  std::array<PartInfo, 12> parts = {};
  PartInfo fused = {};  // replaces the parts in families that name it
  Dim columns = Dim::kNone;
  absl::string_view TensorNames::*scope = nullptr;  // names become SCOPE.NAME
  HeadRows head = {};
  Split split = Split::kReplicated;
  NormSpec (*norm)(const LayerSpec&) = nullptr;  // kNorm
  // Null: the tensor is in every layer that has the block.
  LayerPredicate is_present = nullptr;
  absl::string_view indivisible_field = "";  // if set, field that prevents division among devices

  bool IsIn(const LayerSpec& layer) const;
  // Returns the tensors that a family's checkpoints contain. For kExpertMatrices, `fused` is a
  // stack of all experts.
  std::vector<PartInfo> PartsIn(const TensorNames& names) const;
  // Inputs and outputs of one matrix. REQUIRES: the tensor is not a vector. outputs() also requires
  // kHeadMatrices.
  Dim inputs() const { return head.is_transposed ? head.rows : columns; }
  Dim outputs() const { return head.is_transposed ? columns : head.rows; }
  bool is_vector() const { return kind == TensorKind::kNorm || kind == TensorKind::kVector; }
};

// A row of a table. One of the three member pointers is set.
template <typename Block>
struct TensorRow {
  TensorInfo info;
  typename Block::Vector Block::*vector = nullptr;
  typename Block::Linear Block::*linear = nullptr;
  std::vector<typename Block::Linear> Block::*linears = nullptr;  // one per expert or head
};

// The tensors of a layer in memory. Members that a layer does not have are empty. A Vector is
// stored in f32. A Linear is one or more matrices that share their input, with their bias.

// Multi-head latent attention.
template <typename VectorType, typename LinearType>
struct MlaTensors {
  using Vector = VectorType;
  using Linear = LinearType;
  Linear q_a;                       // [q rank, hidden]; empty without a rank
  Vector q_a_norm{};                // [q rank]
  Linear q;                         // [heads * (nope + rope), q rank or hidden]
  Linear kv_a;                      // [rank + rope, hidden]
  Vector kv_a_norm{};               // [rank]
  std::vector<Linear> to_latent;    // [rank, nope] per head
  std::vector<Linear> from_latent;  // [v, rank] per head
  Linear index_q;                   // [index heads * index size, q rank]; empty without an indexer
  Linear index_k;                   // [index size, hidden]
  Vector index_k_norm{};            // [index size]
  Vector index_k_norm_bias{};       // [index size]
  Linear index_weights;             // [index heads, hidden]
  Linear o;                         // [hidden, heads * v]
};

// A recurrent layer.
template <typename VectorType, typename LinearType>
struct RecurrentTensors {
  using Vector = VectorType;
  using Linear = LinearType;
  Linear in;           // [in_columns, hidden]: channels of the convolution, z, b, a
  Linear gate;         // [heads * value_size, gate_rank]
  Linear decay;        // [decay_columns, decay_rank]
  Vector conv{};       // [conv_channels, conv_width]
  Vector conv_bias{};  // [conv_channels]
  Vector a_log{};      // [heads]
  Vector dt_bias{};    // [decay_columns]
  Vector skip{};       // [heads]
  Vector gate_norm{};  // [value_size], or [heads * value_size] with norm_groups
  Linear out;          // [hidden, heads * value_size]
};

// Short convolution.
template <typename VectorType, typename LinearType>
struct ShortConvTensors {
  using Vector = VectorType;
  using Linear = LinearType;
  Linear in;      // [3 * hidden, hidden]: B, C, v
  Vector conv{};  // [hidden, width]
  Linear out;     // [hidden, hidden]
};

// Mixture of experts.
template <typename VectorType, typename LinearType>
struct MoeTensors {
  using Vector = VectorType;
  using Linear = LinearType;
  Linear router;                // [experts, hidden]
  Vector choice_bias{};         // [experts]
  Vector router_norm{};         // [hidden]
  Vector expert_scale{};        // [experts]
  Linear latent_in;             // [latent, hidden]
  std::vector<Linear> gate_up;  // [MlpSpec::inner_columns, hidden or latent] per expert
  std::vector<Linear> down;     // [hidden or latent, intermediate] per expert
  Linear latent_out;            // [hidden, latent]
  Linear shared_gate_up;        // [MlpSpec::inner_columns, hidden]
  Linear shared_down;           // [hidden, shared intermediate]
  Linear shared_gate;           // [1, hidden]
};

template <typename VectorType, typename LinearType,
          typename Moe = MoeTensors<VectorType, LinearType>>
struct LayerTensors {
  using Vector = VectorType;
  using Linear = LinearType;
  Vector attn_in{};         // [hidden]
  Vector attn_out{};        // [hidden]
  Vector mlp_in{};          // [hidden]
  Vector mlp_out{};         // [hidden]
  Vector dense_out{};       // [hidden]
  Vector moe_in{};          // [hidden]
  Vector moe_out{};         // [hidden]
  Vector output_scale{};    // [1]
  Vector input_out_norm{};  // [hidden]
  Linear qkv;               // [(heads + 2 kv_heads) * d, hidden], then the rows of the output gate
  Vector q_norm{};          // [d], or [heads * d] for QkNormScope::kWhole
  Vector k_norm{};          // [d], or [kv_heads * d]
  Vector sinks{};           // [heads]
  Linear o;                 // [hidden, heads * d]
  Linear gate_up;           // [MlpSpec::inner_columns, hidden]
  Linear down;              // [hidden, intermediate]
  Linear input_gate;        // [layer input, hidden]
  Linear input_out;         // [hidden, layer input]
  MlaTensors<Vector, Linear> mla;
  RecurrentTensors<Vector, Linear> recurrent;
  ShortConvTensors<Vector, Linear> short_conv;
  Moe moe;
};

// Returns the row of a norm over the hidden size.
template <typename Layer, NormSpec LayerSpec::*kNorm>
constexpr TensorRow<Layer> NormRow(absl::string_view TensorNames::*name,
                                   typename Layer::Vector Layer::*vector) {
  return {.info = {.kind = TensorKind::kNorm,
                   .parts = {{{.name = name, .rows = Dim::kHidden}}},
                   .norm = [](const LayerSpec& layer) { return layer.*kNorm; }},
          .vector = vector};
}

template <typename Layer>
inline constexpr TensorRow<Layer> kNormTable[] = {
    NormRow<Layer, &LayerSpec::attn_in>(&TensorNames::attn_in, &Layer::attn_in),
    NormRow<Layer, &LayerSpec::attn_out>(&TensorNames::attn_out, &Layer::attn_out),
    NormRow<Layer, &LayerSpec::mlp_in>(&TensorNames::mlp_in, &Layer::mlp_in),
    NormRow<Layer, &LayerSpec::mlp_out>(&TensorNames::mlp_out, &Layer::mlp_out),
    NormRow<Layer, &LayerSpec::dense_out>(&TensorNames::dense_out, &Layer::dense_out),
    NormRow<Layer, &LayerSpec::moe_in>(&TensorNames::moe_in, &Layer::moe_in),
    NormRow<Layer, &LayerSpec::moe_out>(&TensorNames::moe_out, &Layer::moe_out),
    {.info = {.kind = TensorKind::kVector,
              .parts = {{{.name = &TensorNames::output_scale, .rows = Dim::kOne}}},
              .is_present = [](const LayerSpec& layer) { return layer.has_output_scale; },
              .indivisible_field = "has_output_scale"},
     .vector = &Layer::output_scale},
};

constexpr bool NormsWholeRows(const LayerSpec& layer) {
  return layer.heads.qk_norm_scope == QkNormScope::kWhole;
}
constexpr bool NormsHeads(const LayerSpec& layer) {
  return !NormsWholeRows(layer);
}
constexpr NormSpec QkNorm(const LayerSpec& layer) {
  return layer.heads.qk_norm;
}

// Return the rows of queries and of output gates in the query projection. With gates, the rows of a
// head are followed by those of its gate.
std::vector<RowRange> QueryRows(const LayerSpec& layer);
std::vector<RowRange> GateRows(const LayerSpec& layer);
// Return the rows of k_proj and v_proj, or none in layers without these tensors.
std::vector<RowRange> KeyRows(const LayerSpec& layer);
std::vector<RowRange> ValueRows(const LayerSpec& layer);

// The norms of q and k have a table row for each scope (QkNormScope).
template <typename Layer>
inline constexpr TensorRow<Layer> kAttentionTable[] = {
    {.info = {.label = "qkv",
              .parts = {{{.name = &TensorNames::q,
                          .rows = Dim::kQueryRows,
                          .has_bias = [](const LayerSpec& layer) { return layer.heads.q_bias; },
                          .pick = QueryRows},
                         {.name = &TensorNames::k,
                          .rows = Dim::kKeys,
                          .has_bias = [](const LayerSpec& layer) { return layer.heads.k_bias; },
                          .pick = KeyRows},
                         {.name = &TensorNames::v,
                          .rows = Dim::kKeys,
                          .has_bias = [](const LayerSpec& layer) { return layer.heads.v_bias; },
                          .pick = ValueRows},
                         {.name = &TensorNames::q,
                          .rows = Dim::kQueryRows,
                          .has_bias = [](const LayerSpec& layer) { return layer.heads.q_bias; },
                          .pick = GateRows}}},
              .fused = {.name = &TensorNames::qkv,
                        .rows = Dim::kQkv,
                        .has_bias = [](const LayerSpec& layer) { return layer.heads.q_bias; }},
              .columns = Dim::kHidden,
              .split = Split::kRows},
     .linear = &Layer::qkv},
    {.info = {.kind = TensorKind::kNorm,
              .parts = {{{.name = &TensorNames::q_norm, .rows = Dim::kHeadSize}}},
              .norm = QkNorm,
              .is_present = NormsHeads},
     .vector = &Layer::q_norm},
    {.info = {.kind = TensorKind::kNorm,
              .parts = {{{.name = &TensorNames::q_norm, .rows = Dim::kQueries}}},
              .norm = QkNorm,
              .is_present = NormsWholeRows,
              .indivisible_field = "heads.qk_norm over all heads"},
     .vector = &Layer::q_norm},
    {.info = {.kind = TensorKind::kNorm,
              .parts = {{{.name = &TensorNames::k_norm, .rows = Dim::kHeadSize}}},
              .norm = QkNorm,
              .is_present =
                  [](const LayerSpec& layer) { return NormsHeads(layer) && layer.stores_kv(); }},
     .vector = &Layer::k_norm},
    {.info = {.kind = TensorKind::kNorm,
              .parts = {{{.name = &TensorNames::k_norm, .rows = Dim::kKeys}}},
              .norm = QkNorm,
              .is_present =
                  [](const LayerSpec& layer) { return NormsWholeRows(layer) && layer.stores_kv(); },
              .indivisible_field = "heads.qk_norm over all heads"},
     .vector = &Layer::k_norm},
    {.info = {.kind = TensorKind::kVector,
              .parts = {{{.name = &TensorNames::sinks, .rows = Dim::kHeads}}},
              .is_present = [](const LayerSpec& layer) { return layer.heads.has_sinks; },
              .indivisible_field = "heads.has_sinks"},
     .vector = &Layer::sinks},
    {.info = {.label = "o",
              .parts = {{{.name = &TensorNames::o,
                          .rows = Dim::kHidden,
                          .has_bias = [](const LayerSpec& layer) { return layer.heads.o_bias; }}}},
              .columns = Dim::kQueries,
              .split = Split::kColumns},
     .linear = &Layer::o},
};

constexpr bool HasQueryRank(const LayerSpec& layer) {
  return layer.mla.q_lora_rank != 0;
}
constexpr bool HasNoQueryRank(const LayerSpec& layer) {
  return !HasQueryRank(layer);
}
// Checkpoints contain the weights of these norms even if latent_eps disables the norms.
constexpr NormSpec MlaNorm(const LayerSpec& layer) {
  return {.kind = NormKind::kRms, .eps = layer.mla.latent_eps};
}

constexpr bool HasIndexer(const LayerSpec& layer) {
  return layer.mla.has_indexer();
}

template <typename Block>
inline constexpr TensorRow<Block> kMlaTable[] = {
    {.info = {.label = "q_a",
              .parts = {{{.name = &TensorNames::q_a,
                          .rows = Dim::kMlaQueryRank,
                          .has_bias = [](const LayerSpec& layer) { return layer.mla.qa_bias; }}}},
              .columns = Dim::kHidden,
              .is_present = HasQueryRank},
     .linear = &Block::q_a},
    {.info = {.kind = TensorKind::kNorm,
              .parts = {{{.name = &TensorNames::q_a_norm, .rows = Dim::kMlaQueryRank}}},
              .norm = MlaNorm,
              .is_present = HasQueryRank},
     .vector = &Block::q_a_norm},
    {.info = {.label = "q",
              .parts = {{{.name = &TensorNames::q_b, .rows = Dim::kMlaQueries}}},
              .columns = Dim::kMlaQueryRank,
              .is_present = HasQueryRank},
     .linear = &Block::q},
    {.info = {.label = "q",
              .parts = {{{.name = &TensorNames::q, .rows = Dim::kMlaQueries}}},
              .columns = Dim::kHidden,
              .is_present = HasNoQueryRank},
     .linear = &Block::q},
    {.info = {.label = "kv_a",
              .parts = {{{.name = &TensorNames::kv_a,
                          .rows = Dim::kMlaRow,
                          .has_bias = [](const LayerSpec& layer) { return layer.mla.kva_bias; }}}},
              .columns = Dim::kHidden},
     .linear = &Block::kv_a},
    {.info = {.kind = TensorKind::kNorm,
              .parts = {{{.name = &TensorNames::kv_a_norm, .rows = Dim::kMlaRank}}},
              .norm = MlaNorm},
     .vector = &Block::kv_a_norm},
    // The rows that compute keys are transposed, so that they map a query into the latent space.
    {.info = {.label = "to_latent",
              .kind = TensorKind::kHeadMatrices,
              .parts = {{{.name = &TensorNames::kv_b,
                          .rows = Dim::kMlaKeysAndValues,
                          .stack_name = &TensorNames::k_b_stack}}},
              .columns = Dim::kMlaRank,
              .head = {.piece = "keys", .rows = Dim::kMlaNope, .is_transposed = true}},
     .linears = &Block::to_latent},
    {.info = {.label = "from_latent",
              .kind = TensorKind::kHeadMatrices,
              .parts = {{{.name = &TensorNames::kv_b,
                          .rows = Dim::kMlaKeysAndValues,
                          .stack_name = &TensorNames::v_b_stack}}},
              .columns = Dim::kMlaRank,
              .head = {.piece = "values", .first = Dim::kMlaNope, .rows = Dim::kMlaValue}},
     .linears = &Block::from_latent},
    // A rounding error of the indexer can select other keys and change a token's result entirely.
    // The tensors of the indexer therefore keep their stored type.
    {.info = {.label = "index_q",
              .kind = TensorKind::kUnconverted,
              .parts = {{{.name = &TensorNames::index_q, .rows = Dim::kIndexQueries}}},
              .columns = Dim::kMlaQueryRank,
              .is_present = HasIndexer},
     .linear = &Block::index_q},
    {.info = {.label = "index_k",
              .kind = TensorKind::kUnconverted,
              .parts = {{{.name = &TensorNames::index_k, .rows = Dim::kIndexSize}}},
              .columns = Dim::kHidden,
              .is_present = HasIndexer},
     .linear = &Block::index_k},
    {.info = {.kind = TensorKind::kNorm,
              .parts = {{{.name = &TensorNames::index_k_norm, .rows = Dim::kIndexSize}}},
              .norm = [](const LayerSpec&) { return NormSpec{.kind = NormKind::kLayer}; },
              .is_present = HasIndexer},
     .vector = &Block::index_k_norm},
    {.info = {.kind = TensorKind::kVector,
              .parts = {{{.name = &TensorNames::index_k_norm_bias, .rows = Dim::kIndexSize}}},
              .is_present = HasIndexer},
     .vector = &Block::index_k_norm_bias},
    {.info = {.label = "index_weights",
              .kind = TensorKind::kUnconverted,
              .parts = {{{.name = &TensorNames::index_weights, .rows = Dim::kIndexHeads}}},
              .columns = Dim::kHidden,
              .is_present = HasIndexer},
     .linear = &Block::index_weights},
    {.info = {.label = "o",
              .parts = {{{.name = &TensorNames::o,
                          .rows = Dim::kHidden,
                          .has_bias = [](const LayerSpec& layer) { return layer.mla.o_bias; }}}},
              .columns = Dim::kMlaValues},
     .linear = &Block::o},
};

// Return the rows of tensors that are ordered by key heads, in the order of RecurrentTensors::in.
std::vector<RowRange> RowsOfQkvz(const LayerSpec& layer);
std::vector<RowRange> RowsOfBa(const LayerSpec& layer);
// Returns the rows of TensorNames::in_zxbcdt, which stores z, the channels and a, in the order of
// RecurrentTensors::in.
std::vector<RowRange> RowsOfZxbcdt(const LayerSpec& layer);

template <typename Block>
inline constexpr TensorRow<Block> kRecurrentTable[] = {
    {.info =
         {.label = "recurrent_in",
          .parts =
              {{{.name = &TensorNames::in_qkvz,
                 .rows = Dim::kRecurrentChannelsAndGates,
                 .pick = RowsOfQkvz},
                {.name = &TensorNames::in_zxbcdt, .rows = Dim::kRecurrentIn, .pick = RowsOfZxbcdt},
                {.name = &TensorNames::in_qkv, .rows = Dim::kRecurrentChannels},
                {.name = &TensorNames::in_q, .rows = Dim::kRecurrentKeys},
                {.name = &TensorNames::in_k, .rows = Dim::kRecurrentKeys},
                {.name = &TensorNames::in_v, .rows = Dim::kRecurrentValues},
                {.name = &TensorNames::in_z, .rows = Dim::kRecurrentValues},
                {.name = &TensorNames::in_gate_rank, .rows = Dim::kRecurrentGateRank},
                {.name = &TensorNames::in_ba, .rows = Dim::kRecurrentRates, .pick = RowsOfBa},
                {.name = &TensorNames::in_b, .rows = Dim::kRecurrentHeads},
                {.name = &TensorNames::in_a, .rows = Dim::kRecurrentDecays},
                {.name = &TensorNames::in_decay_rank, .rows = Dim::kRecurrentDecayRank}}},
          .columns = Dim::kHidden},
     .linear = &Block::in},
    {.info = {.label = "recurrent_gate",
              .parts = {{{.name = &TensorNames::gate_of_rank, .rows = Dim::kRecurrentValues}}},
              .columns = Dim::kRecurrentGateRank,
              .is_present = [](const LayerSpec& layer) { return layer.recurrent.gate_rank != 0; }},
     .linear = &Block::gate},
    {.info = {.label = "recurrent_decay",
              .parts = {{{.name = &TensorNames::decay_of_rank, .rows = Dim::kRecurrentDecays}}},
              .columns = Dim::kRecurrentDecayRank,
              .is_present = [](const LayerSpec& layer) { return layer.recurrent.decay_rank != 0; }},
     .linear = &Block::decay},
    {.info = {.kind = TensorKind::kVector,
              .parts = {{{.name = &TensorNames::conv, .rows = Dim::kRecurrentChannels},
                         {.name = &TensorNames::conv_q, .rows = Dim::kRecurrentKeys},
                         {.name = &TensorNames::conv_k, .rows = Dim::kRecurrentKeys},
                         {.name = &TensorNames::conv_v, .rows = Dim::kRecurrentValues}}},
              .columns = Dim::kRecurrentTaps},
     .vector = &Block::conv},
    {.info = {.kind = TensorKind::kVector,
              .parts = {{{.name = &TensorNames::conv_bias, .rows = Dim::kRecurrentChannels}}},
              .is_present = [](const LayerSpec& layer) { return layer.recurrent.conv_bias; }},
     .vector = &Block::conv_bias},
    {.info = {.kind = TensorKind::kVector,
              .parts = {{{.name = &TensorNames::a_log, .rows = Dim::kRecurrentHeads}}}},
     .vector = &Block::a_log},
    {.info = {.kind = TensorKind::kVector,
              .parts = {{{.name = &TensorNames::dt_bias, .rows = Dim::kRecurrentDecays}}}},
     .vector = &Block::dt_bias},
    {.info = {.kind = TensorKind::kVector,
              .parts = {{{.name = &TensorNames::skip, .rows = Dim::kRecurrentHeads}}},
              .is_present = [](const LayerSpec& layer) { return layer.recurrent.skip; }},
     .vector = &Block::skip},
    {.info = {.kind = TensorKind::kVector,
              .parts = {{{.name = &TensorNames::gate_norm, .rows = Dim::kRecurrentNorm}}}},
     .vector = &Block::gate_norm},
    {.info = {.label = "recurrent_out",
              .parts = {{{.name = &TensorNames::recurrent_out, .rows = Dim::kHidden}}},
              .columns = Dim::kRecurrentValues},
     .linear = &Block::out},
};

template <typename Block>
inline constexpr TensorRow<Block> kShortConvTable[] = {
    {.info = {.label = "short_conv_in",
              .parts = {{{.name = &TensorNames::short_conv_in, .rows = Dim::kThreeHidden}}},
              .columns = Dim::kHidden},
     .linear = &Block::in},
    {.info = {.kind = TensorKind::kVector,
              .parts = {{{.name = &TensorNames::short_conv, .rows = Dim::kHidden}}},
              .columns = Dim::kShortConvTaps},
     .vector = &Block::conv},
    {.info = {.label = "short_conv_out",
              .parts = {{{.name = &TensorNames::short_conv_out, .rows = Dim::kHidden}}},
              .columns = Dim::kHidden},
     .linear = &Block::out},
};

// An MLP without gate has a separate table row, for a tensor with only the rows of up.
template <typename Layer>
inline constexpr TensorRow<Layer> kMlpTable[] = {
    {.info = {.label = "gate_up",
              .parts = {{{.name = &TensorNames::gate,
                          .rows = Dim::kInner,
                          .has_bias = [](const LayerSpec& layer) { return layer.dense.gate_bias; }},
                         {.name = &TensorNames::up,
                          .rows = Dim::kInner,
                          .has_bias = [](const LayerSpec& layer) { return layer.dense.up_bias; }}}},
              .fused = {.name = &TensorNames::gate_up,
                        .rows = Dim::kTwoInner,
                        .has_bias = [](const LayerSpec& layer) { return layer.dense.gate_bias; }},
              .columns = Dim::kHidden,
              .split = Split::kRows,
              .is_present = [](const LayerSpec& layer) { return layer.dense.gated; }},
     .linear = &Layer::gate_up},
    {.info = {.label = "gate_up",
              .parts = {{{.name = &TensorNames::up,
                          .rows = Dim::kInner,
                          .has_bias = [](const LayerSpec& layer) { return layer.dense.up_bias; }}}},
              .columns = Dim::kHidden,
              .split = Split::kRows,
              .is_present = [](const LayerSpec& layer) { return !layer.dense.gated; }},
     .linear = &Layer::gate_up},
    {.info = {.label = "down",
              .parts = {{{.name = &TensorNames::down,
                          .rows = Dim::kHidden,
                          .has_bias =
                              [](const LayerSpec& layer) { return layer.dense.down_bias; }}}},
              .columns = Dim::kInner,
              .split = Split::kColumns},
     .linear = &Layer::down},
};

constexpr bool HasLatent(const LayerSpec& layer) {
  return layer.moe.latent != 0;
}
constexpr bool HasShared(const LayerSpec& layer) {
  return layer.moe.shared.has_value();
}
constexpr bool HasGatedShared(const LayerSpec& layer) {
  return HasShared(layer) && layer.moe.shared->gated;
}
constexpr bool HasUngatedShared(const LayerSpec& layer) {
  return HasShared(layer) && !layer.moe.shared->gated;
}

template <typename Block>
inline constexpr TensorRow<Block> kMoeTable[] = {
    // A rounding error of the router can choose other experts and change a token's result entirely.
    // The router therefore keeps its stored type.
    {.info = {.label = "router",
              .kind = TensorKind::kUnconverted,
              .parts = {{{.name = &TensorNames::router,
                          .rows = Dim::kExperts,
                          .has_bias =
                              [](const LayerSpec& layer) { return layer.moe.router_bias; }}}},
              .columns = Dim::kHidden},
     .linear = &Block::router},
    {.info = {.kind = TensorKind::kVector,
              .parts = {{{.name = &TensorNames::choice_bias, .rows = Dim::kExperts}}},
              .is_present = [](const LayerSpec& layer) { return layer.moe.choice_bias; }},
     .vector = &Block::choice_bias},
    {.info = {.kind = TensorKind::kVector,
              .parts = {{{.name = &TensorNames::router_norm, .rows = Dim::kHidden}}},
              .norm = [](const LayerSpec& layer) { return layer.moe.router_norm; }},
     .vector = &Block::router_norm},
    {.info = {.kind = TensorKind::kVector,
              .parts = {{{.name = &TensorNames::expert_scale, .rows = Dim::kExperts}}},
              .is_present = [](const LayerSpec& layer) { return layer.moe.expert_scale; }},
     .vector = &Block::expert_scale},
    {.info = {.label = "latent_in",
              .parts = {{{.name = &TensorNames::latent_in, .rows = Dim::kLatent}}},
              .columns = Dim::kHidden,
              .is_present = HasLatent},
     .linear = &Block::latent_in},
    {.info =
         {.label = "gate_up",
          .kind = TensorKind::kExpertMatrices,
          .parts = {{{.name = &TensorNames::expert_gate,
                      .rows = Dim::kExpertInner,
                      .has_bias = [](const LayerSpec& layer) { return layer.moe.expert.gate_bias; },
                      .stack_name = &TensorNames::gate_stack},
                     {.name = &TensorNames::expert_up,
                      .rows = Dim::kExpertInner,
                      .has_bias = [](const LayerSpec& layer) { return layer.moe.expert.up_bias; },
                      .stack_name = &TensorNames::up_stack}}},
          .fused = {.name = &TensorNames::stacked_gate_up,
                    .rows = Dim::kTwoExpertInner,
                    .has_bias = [](const LayerSpec& layer) { return layer.moe.expert.gate_bias; },
                    .stack_name = &TensorNames::gate_up_stack},
          .columns = Dim::kExpertInput,
          .is_present = [](const LayerSpec& layer) { return layer.moe.expert.gated; }},
     .linears = &Block::gate_up},
    {.info = {.label = "gate_up",
              .kind = TensorKind::kExpertMatrices,
              .parts = {{{.name = &TensorNames::expert_up,
                          .rows = Dim::kExpertInner,
                          .has_bias =
                              [](const LayerSpec& layer) { return layer.moe.expert.up_bias; },
                          .stack_name = &TensorNames::up_stack}}},
              .columns = Dim::kExpertInput,
              .is_present = [](const LayerSpec& layer) { return !layer.moe.expert.gated; }},
     .linears = &Block::gate_up},
    {.info =
         {.label = "down",
          .kind = TensorKind::kExpertMatrices,
          .parts = {{{.name = &TensorNames::expert_down,
                      .rows = Dim::kExpertInput,
                      .has_bias = [](const LayerSpec& layer) { return layer.moe.expert.down_bias; },
                      .stack_name = &TensorNames::down_stack}}},
          .fused = {.name = &TensorNames::stacked_down,
                    .rows = Dim::kExpertInput,
                    .has_bias = [](const LayerSpec& layer) { return layer.moe.expert.down_bias; }},
          .columns = Dim::kExpertInner},
     .linears = &Block::down},
    {.info = {.label = "latent_out",
              .parts = {{{.name = &TensorNames::latent_out, .rows = Dim::kHidden}}},
              .columns = Dim::kLatent,
              .is_present = HasLatent},
     .linear = &Block::latent_out},
    {.info =
         {.label = "shared_gate_up",
          .parts =
              {{{.name = &TensorNames::shared_mlp_gate,
                 .rows = Dim::kSharedInner,
                 .has_bias = [](const LayerSpec& layer) { return layer.moe.shared->gate_bias; }},
                {.name = &TensorNames::shared_mlp_up,
                 .rows = Dim::kSharedInner,
                 .has_bias = [](const LayerSpec& layer) { return layer.moe.shared->up_bias; }}}},
          .fused = {.name = &TensorNames::shared_mlp_gate_up,
                    .rows = Dim::kTwoSharedInner,
                    .has_bias = [](const LayerSpec& layer) { return layer.moe.shared->gate_bias; }},
          .columns = Dim::kHidden,
          .scope = &TensorNames::shared,
          .is_present = HasGatedShared},
     .linear = &Block::shared_gate_up},
    {.info = {.label = "shared_gate_up",
              .parts = {{{.name = &TensorNames::shared_mlp_up,
                          .rows = Dim::kSharedInner,
                          .has_bias =
                              [](const LayerSpec& layer) { return layer.moe.shared->up_bias; }}}},
              .columns = Dim::kHidden,
              .scope = &TensorNames::shared,
              .is_present = HasUngatedShared},
     .linear = &Block::shared_gate_up},
    {.info = {.label = "shared_down",
              .parts = {{{.name = &TensorNames::shared_mlp_down,
                          .rows = Dim::kHidden,
                          .has_bias =
                              [](const LayerSpec& layer) { return layer.moe.shared->down_bias; }}}},
              .columns = Dim::kSharedInner,
              .scope = &TensorNames::shared,
              .is_present = HasShared},
     .linear = &Block::shared_down},
    {.info = {.label = "shared_gate",
              .kind = TensorKind::kUnconverted,
              .parts = {{{.name = &TensorNames::shared_gate, .rows = Dim::kOne}}},
              .columns = Dim::kHidden,
              .is_present =
                  [](const LayerSpec& layer) { return layer.moe.shared && layer.moe.shared_gate; }},
     .linear = &Block::shared_gate},
};

template <typename Layer>
inline constexpr TensorRow<Layer> kInputTable[] = {
    {.info = {.label = "input_gate",
              .parts = {{{.name = &TensorNames::input_gate, .rows = Dim::kLayerInput}}},
              .columns = Dim::kHidden,
              .indivisible_field = "input"},
     .linear = &Layer::input_gate},
    {.info = {.label = "input_out",
              .parts = {{{.name = &TensorNames::input_out, .rows = Dim::kHidden}}},
              .columns = Dim::kLayerInput},
     .linear = &Layer::input_out},
    {.info = {.kind = TensorKind::kNorm,
              .parts = {{{.name = &TensorNames::input_out_norm, .rows = Dim::kHidden}}},
              .norm = [](const LayerSpec& layer) { return layer.input.norm; }},
     .vector = &Layer::input_out_norm},
};

// Calls fn(block kind, row, block) for the rows of all tables, in the order in which tensors lie in
// memory. `Layer` is a LayerTensors, const or not; `block` is the struct that the row's member
// belongs to.
template <typename Layer, typename Fn>
void ForEachRow(Layer& layer, Fn&& fn) {
  using Whole = std::remove_const_t<Layer>;
  for (const auto& row : kNormTable<Whole>) fn(BlockKind::kNorms, row, layer);
  for (const auto& row : kAttentionTable<Whole>) fn(BlockKind::kAttention, row, layer);
  for (const auto& row : kMlaTable<decltype(Whole::mla)>) fn(BlockKind::kMla, row, layer.mla);
  for (const auto& row : kRecurrentTable<decltype(Whole::recurrent)>) {
    fn(BlockKind::kRecurrent, row, layer.recurrent);
  }
  for (const auto& row : kShortConvTable<decltype(Whole::short_conv)>) {
    fn(BlockKind::kShortConv, row, layer.short_conv);
  }
  for (const auto& row : kMlpTable<Whole>) fn(BlockKind::kMlp, row, layer);
  for (const auto& row : kMoeTable<decltype(Whole::moe)>) fn(BlockKind::kMoe, row, layer.moe);
  for (const auto& row : kInputTable<Whole>) fn(BlockKind::kInput, row, layer);
}

// Calls fn(block kind, info) for the rows that a layer has.
void ForEachTensor(const LayerSpec& layer,
                   absl::FunctionRef<void(BlockKind, const TensorInfo&)> fn);
// Calls fn(block kind, info) for all rows.
void ForEachTensor(absl::FunctionRef<void(BlockKind, const TensorInfo&)> fn);

// Returns "model.layers.3." for layer 3.
std::string LayerPrefix(const TensorNames& names, std::size_t layer);
// Returns the prefix of the names of a block's tensors: the prefix of the layer and, for MoE,
// names.moe.
std::string BlockPrefix(const TensorNames& names, BlockKind block, std::size_t layer);
// Returns the name of a part, without ".weight".
std::string PartName(const TensorNames& names, const TensorInfo& info, const PartInfo& part,
                     absl::string_view block_prefix);

// How checkpoints store the tensors of a kExpertMatrices row.
enum class ExpertStorage : std::uint8_t {
  kPerExpert,         // one tensor per part and expert
  kStacks,            // PartInfo::stack_name.weight [experts, rows, columns]
  kTransposedStacks,  // TensorInfo::fused [experts, columns, rows]
  kRowStacks,         // TensorInfo::fused [experts, rows, columns]
};
ExpertStorage ExpertStorageOf(const TensorNames& names);

}  // namespace quire::models
