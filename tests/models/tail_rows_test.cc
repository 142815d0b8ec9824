// The tokens that the last layers of a model compute if they write neither K and V nor states.

#include "models/blocks/tail_rows.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <span>
#include <utility>
#include <vector>

#include "models/blocks/step_buffers.h"

namespace quire::models {
namespace {

constexpr std::uint32_t kHidden = 6, kInput = 3, kRows = 5;

// Four layers, the last two of which read the K and V of others.
ModelSpec SpecOf() {
  LayerSpec layer;
  layer.heads.num_heads = layer.heads.num_kv_heads = 1;
  layer.heads.head_size = layer.heads.v_head_size = 4;
  layer.dense.intermediate = 8;
  layer.input.size = kInput;
  ModelSpec spec;
  spec.vocab_size = 16;
  spec.hidden = kHidden;
  spec.max_position = 64;
  spec.layer_inputs.size = kInput;
  spec.layers.assign(4, layer);
  spec.layers[2].kv_from_layer = 0;
  spec.layers[3].kv_from_layer = 1;
  spec.rope_tables = {{{1, 0.5f}, 1}, {{1}, 1}};
  return spec;
}

// Element `column` of row `row` of an array.
float ValueAt(std::uint32_t array, std::uint32_t row, std::uint32_t column) {
  return static_cast<float>(array * 10000 + row * 100 + column);
}

struct Array {
  float* values;
  std::uint32_t columns;
};

// Fills the arrays with ValueAt.
void Fill(const std::vector<Array>& arrays, std::uint32_t rows) {
  for (std::uint32_t a = 0; a < arrays.size(); ++a) {
    for (std::uint32_t i = 0; i < rows * arrays[a].columns; ++i) {
      arrays[a].values[i] = ValueAt(a, i / arrays[a].columns, i % arrays[a].columns);
    }
  }
}

// Expects that row `at` of the arrays is row `from` of those that Fill wrote.
void ExpectRow(std::span<const Array> arrays, std::uint32_t at, std::uint32_t from) {
  for (std::uint32_t a = 0; a < arrays.size(); ++a) {
    for (std::uint32_t c = 0; c < arrays[a].columns; ++c) {
      ASSERT_EQ(arrays[a].values[at * arrays[a].columns + c], ValueAt(a, from, c));
    }
  }
}

TEST(TailRowsTest, TailBeginsBehindTheLastLayerThatStoresKeys) {
  ModelSpec spec = SpecOf();
  EXPECT_EQ(FirstTailLayer(spec), 2u);
  spec.layers[2].kv_from_layer = -1;
  EXPECT_EQ(FirstTailLayer(spec), 3u);
  spec.layers[3].kv_from_layer = -1;
  EXPECT_EQ(FirstTailLayer(spec), 4u);
}

// Recurrent layers write states, and latent rows or index rows are stored like K and V.
TEST(TailRowsTest, TailBeginsBehindTheLastLayerThatWritesAnything) {
  for (const AttentionKind kind :
       {AttentionKind::kRecurrent, AttentionKind::kShortConv, AttentionKind::kMla}) {
    ModelSpec spec = SpecOf();
    spec.layers[3] = {};
    spec.layers[3].attention = kind;
    EXPECT_EQ(FirstTailLayer(spec), 4u);
    std::swap(spec.layers[2], spec.layers[3]);
    EXPECT_EQ(FirstTailLayer(spec), 3u);
  }
  ModelSpec spec = SpecOf();
  for (const std::size_t i : {2u, 3u}) {
    spec.layers[i] = {};
    spec.layers[i].attention = AttentionKind::kNone;
  }
  EXPECT_EQ(FirstTailLayer(spec), 2u);
  spec.layers[1].attention = AttentionKind::kRecurrent;
  EXPECT_EQ(FirstTailLayer(spec), 2u);
}

TEST(TailRowsTest, MovesTheLastTokensOfEachRowToTheFrontAndBack) {
  const ModelSpec spec = SpecOf();
  std::mt19937 engine(3);
  const auto random = [&](std::uint32_t n) { return static_cast<std::uint32_t>(engine()) % n; };
  for (int round = 0; round < 200; ++round) {
    auto buffers = StepBuffers::Allocate(spec, {.max_rows = kRows, .max_step_tokens = 40});
    ASSERT_TRUE(buffers.ok()) << buffers.status();
    std::vector<std::uint32_t> wanted(kRows), cached(kRows), offsets = {0};
    for (std::uint32_t row = 0; row < kRows; ++row) {
      const std::uint32_t tokens = random(8);
      offsets.push_back(offsets.back() + tokens);
      wanted[row] = random(tokens + 1);
      cached[row] = random(20);
    }
    std::copy(offsets.begin(), offsets.end(), buffers->row_offsets);
    const std::uint32_t total = offsets.back();
    std::vector<RopeAngles> angles = {
        {buffers->cosines, buffers->sines},
        {buffers->cosines + 2 * std::size_t{total}, buffers->sines + 2 * std::size_t{total}}};
    const std::vector<Array> arrays = {{buffers->x, kHidden},
                                       {buffers->layer_inputs, 4 * kInput},
                                       {buffers->cosines, 2},
                                       {buffers->sines, 2},
                                       {buffers->cosines + 2 * std::size_t{total}, 1},
                                       {buffers->sines + 2 * std::size_t{total}, 1}};
    Fill(arrays, total);
    StepContext context{.backend = nullptr,
                        .kv = {},
                        .plans = {},
                        .maps = {},
                        .buffers = &*buffers,
                        .angles = angles,
                        .num_tokens = total,
                        .batch_size = kRows,
                        .hidden = kHidden};
    TailRows tail(spec, wanted, cached.data(), &context);
    std::uint32_t at = 0;
    for (std::uint32_t row = 0; row < kRows; ++row) {
      ASSERT_EQ(buffers->row_offsets[row], at);
      const std::uint32_t first = offsets[row + 1] - wanted[row];
      ASSERT_EQ(buffers->tail_lengths[row], cached[row] + first - offsets[row]);
      for (std::uint32_t t = first; t < offsets[row + 1]; ++t) ExpectRow(arrays, at++, t);
    }
    ASSERT_EQ(context.num_tokens, at);
    tail.Restore();
    ASSERT_EQ(context.num_tokens, total);
    for (std::uint32_t row = 0; row < kRows; ++row) {
      ASSERT_EQ(buffers->row_offsets[row + 1], offsets[row + 1]);
      for (std::uint32_t t = offsets[row + 1] - wanted[row]; t < offsets[row + 1]; ++t) {
        ExpectRow(std::span(arrays).first(1), t, t);
      }
    }
  }
}

}  // namespace
}  // namespace quire::models
