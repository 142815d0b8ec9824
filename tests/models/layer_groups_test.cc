#include "models/blocks/layer_groups.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>
#include <vector>

#include "runtime/memory_plan.h"

namespace quire::models {
namespace {

// Returns a model whose layer i has the window windows[i].
ModelSpec SpecOf(const std::vector<std::uint32_t>& windows, std::uint32_t max_position = 131072) {
  ModelSpec spec;
  spec.max_position = max_position;
  for (const std::uint32_t window : windows) {
    LayerSpec& layer = spec.layers.emplace_back();
    layer.heads.num_heads = layer.heads.num_kv_heads = 2;
    layer.heads.head_size = layer.heads.v_head_size = 16;
    layer.heads.window = window;
  }
  return spec;
}

// Returns windows where every `period`-th layer has none.
std::vector<std::uint32_t> Windows(std::size_t layers, std::size_t period, std::uint32_t window) {
  std::vector<std::uint32_t> windows(layers, window);
  for (std::size_t i = period - 1; i < layers; i += period) windows[i] = 0;
  return windows;
}

LayerGroups Plan(const std::vector<std::uint32_t>& windows) {
  return PlanLayerGroups(SpecOf(windows));
}

TEST(LayerGroupsTest, LayersWithoutKvTakeNoSlot) {
  ModelSpec spec = SpecOf({0, 0, 0, 0});
  spec.layers[0].attention = AttentionKind::kNone;
  spec.layers[2].attention = AttentionKind::kRecurrent;
  const LayerGroups plan = PlanLayerGroups(spec);
  EXPECT_EQ(plan.slots, 2u);
  ASSERT_EQ(plan.groups.size(), 1u);
  EXPECT_EQ(plan.groups[0].num_layers, 2u);
  ASSERT_EQ(plan.places.size(), 4u);
  EXPECT_EQ(plan.places[1], (LayerPlace{0, 0}));
  EXPECT_EQ(plan.places[3], (LayerPlace{0, 1}));
  const auto geometry = runtime::KvGeometryFor(spec, 16, DType::kF32, 4);
  ASSERT_TRUE(geometry.ok()) << geometry.status();
  EXPECT_EQ(geometry->num_layers, 2u);
}

TEST(LayerGroupsTest, GroupsTheLayersOfPublishedModels) {
  struct Shape {
    const char* name;
    std::vector<std::uint32_t> windows;
    std::uint32_t slots;
    std::string text;
  };
  const Shape shapes[] = {
      {"Llama 3 8B", Windows(32, 1, 0), 32, "32 layers per page; 32 without a window"},
      {"Mistral 7B v0.1", std::vector<std::uint32_t>(32, 4096), 32,
       "32 layers per page; 32 with a window of 4096 tokens"},
      {"Gemma 2 9B", Windows(42, 2, 4096), 21,
       "21 layers per page; 21 without a window, 21 with a window of 4096 tokens"},
      {"Gemma 3 1B", Windows(26, 6, 512), 4,
       "4 layers per page; 4 without a window, 22 with a window of 512 tokens in 6 groups"},
      {"Gemma 3 4B", Windows(34, 6, 1024), 6,
       "6 layers per page; 5 without a window, 29 with a window of 1024 tokens in 5 groups"},
      {"Gemma 3 27B", Windows(62, 6, 1024), 13,
       "13 layers per page; 10 without a window, 52 with a window of 1024 tokens in 4 groups"},
      {"gpt-oss-20b", Windows(24, 2, 128), 12,
       "12 layers per page; 12 without a window, 12 with a window of 128 tokens"}};
  for (const Shape& shape : shapes) {
    const LayerGroups layers = Plan(shape.windows);
    EXPECT_EQ(layers.slots, shape.slots) << shape.name;
    EXPECT_EQ(DescribeLayerGroups(layers), shape.text) << shape.name;
  }
}

TEST(LayerGroupsTest, LayersAreFilledInTheirOrder) {
  const LayerGroups layers = Plan({8, 8, 0, 8, 8, 0});
  EXPECT_EQ(layers.slots, 2u);
  const std::vector<LayerPlace> places = {{0, 0}, {0, 1}, {1, 0}, {2, 0}, {2, 1}, {1, 1}};
  EXPECT_EQ(layers.places, places);
  const KvRow row{.num_heads = 2, .head_size = 16};
  const std::vector<LayerGroup> groups = {{8, 2, 1, row}, {0, 2, 1, row}, {8, 2, 1, row}};
  EXPECT_EQ(layers.groups, groups);
  ASSERT_EQ(CacheGroupsOf(layers).size(), 3u);
  EXPECT_EQ(CacheGroupsOf(layers)[2].window, 8u);
}

TEST(LayerGroupsTest, EveryLayerHasAPlaceOfItsOwnAndFewSlotsStayUnused) {
  std::mt19937 engine(5);
  const auto random = [&] { return static_cast<std::uint32_t>(engine()); };
  for (int round = 0; round < 500; ++round) {
    std::vector<std::uint32_t> windows(1 + random() % 90);
    const std::uint32_t kinds = 1 + random() % 3;
    for (std::uint32_t& window : windows) window = (random() % kinds) * 64;
    const auto n = static_cast<std::uint32_t>(windows.size());
    const LayerGroups layers = Plan(windows);
    std::set<std::pair<std::uint32_t, std::uint32_t>> taken;
    std::vector<std::uint32_t> counts(layers.groups.size());
    for (std::size_t i = 0; i < windows.size(); ++i) {
      const LayerPlace place = layers.places[i];
      ASSERT_LT(place.slot, layers.slots);
      ASSERT_TRUE(taken.insert({place.group, place.slot}).second);
      ASSERT_EQ(layers.groups.at(place.group).window, windows[i]);
      ++counts[place.group];
    }
    for (std::size_t g = 0; g < counts.size(); ++g) {
      ASSERT_EQ(layers.groups[g].num_layers, counts[g]);
    }
    const auto unused = [&](std::uint32_t slots) {
      std::map<std::uint32_t, std::uint32_t> left;
      for (const std::uint32_t window : windows) {
        std::uint32_t& room = left[window];
        room = room == 0 ? slots - 1 : room - 1;
      }
      std::uint32_t sum = 0;
      for (const auto& [window, room] : left) sum += room;
      return sum;
    };
    EXPECT_LE(8 * unused(layers.slots), n);
    for (std::uint32_t slots = 1; slots <= n; ++slots) {
      if (8 * unused(slots) > n) continue;
      const std::uint32_t groups = (n + unused(slots)) / slots;
      EXPECT_GE(groups, layers.groups.size()) << slots << " instead of " << layers.slots;
      EXPECT_TRUE(groups > layers.groups.size() || slots >= layers.slots) << slots;
    }
  }
}

TEST(LayerGroupsTest, WindowAsLongAsTheContextIsIgnored) {
  const ModelSpec spec = SpecOf({0, 512, 512, 0}, 512);
  EXPECT_EQ(PlanLayerGroups(spec), Plan({0, 0, 0, 0}));
}

// A chunk is never longer than a window of its length, so pages behind that window are released.
TEST(LayerGroupsTest, ChunksAreGroupedLikeWindows) {
  ModelSpec spec = SpecOf({0, 0, 0, 0});
  spec.layers[0].heads.chunk = spec.layers[2].heads.chunk = 64;
  EXPECT_EQ(PlanLayerGroups(spec), Plan({64, 0, 64, 0}));
}

TEST(LayerGroupsTest, PageHasTheLayersOfOneGroup) {
  EXPECT_EQ(runtime::KvGeometryFor(SpecOf({8, 0, 8, 0}), 16, DType::kF32, 4)->num_layers, 2u);
  EXPECT_EQ(runtime::KvGeometryFor(SpecOf({0, 0, 0, 0}), 16, DType::kF32, 4)->num_layers, 4u);
}

// Returns a model where layers with a window have `windowed` rows and the others `full` ones.
ModelSpec SpecOfRows(const std::vector<std::uint32_t>& windows, KvRow windowed, KvRow full) {
  ModelSpec spec = SpecOf(windows);
  for (LayerSpec& layer : spec.layers) {
    const KvRow& row = layer.heads.window != 0 ? windowed : full;
    layer.heads.num_kv_heads = row.num_heads;
    layer.heads.head_size = layer.heads.v_head_size = row.head_size;
  }
  return spec;
}

TEST(LayerGroupsTest, GroupsTheUnequalRowsOfPublishedModels) {
  struct Shape {
    const char* name;
    ModelSpec spec;
    std::uint32_t slots;
    std::string text;
  };
  ModelSpec e2b = SpecOfRows(Windows(35, 5, 512), {1, 256}, {1, 512});
  for (std::size_t i = 15; i < 35; ++i) e2b.layers[i].kv_from_layer = (i + 1) % 5 == 0 ? 14 : 13;
  const Shape shapes[] = {
      {"Gemma 4 E2B", e2b, 6,
       "6 slots per page; 3 layers of 2 slots without a window, 12 layers of 1 slot with a "
       "window of 512 tokens in 2 groups"},
      {"Gemma 4 31B", SpecOfRows(Windows(60, 6, 1024), {16, 256}, {4, 512}), 20,
       "20 slots per page; 10 layers of 1 slot without a window, 50 layers of 2 slots with a "
       "window of 1024 tokens in 5 groups"},
      {"Gemma 4 26B-A4B", SpecOfRows(Windows(30, 6, 1024), {8, 256}, {2, 512}), 10,
       "10 slots per page; 5 layers of 1 slot without a window, 25 layers of 2 slots with a "
       "window of 1024 tokens in 5 groups"}};
  for (const Shape& shape : shapes) {
    const LayerGroups layers = PlanLayerGroups(shape.spec);
    EXPECT_EQ(layers.slots, shape.slots) << shape.name;
    EXPECT_EQ(DescribeLayerGroups(layers), shape.text) << shape.name;
  }
}

TEST(LayerGroupsTest, SharedLayersHaveThePlaceOfTheirSource) {
  ModelSpec spec = SpecOf({8, 8, 0, 8, 0});
  spec.layers[3].kv_from_layer = 1;
  spec.layers[4].kv_from_layer = 2;
  const LayerGroups layers = PlanLayerGroups(spec);
  ModelSpec producers = SpecOf({8, 8, 0});
  const LayerGroups without = PlanLayerGroups(producers);
  EXPECT_EQ(layers.slots, without.slots);
  EXPECT_EQ(layers.groups, without.groups);
  EXPECT_EQ(layers.places[3], layers.places[1]);
  EXPECT_EQ(layers.places[4], layers.places[2]);
}

// Every element of a page that a layer of some group uses belongs to it alone, and a page has the
// same bytes for all groups, with and without scales.
TEST(LayerGroupsTest, LayersOfUnequalRowsFillThePagesOfOnePool) {
  std::mt19937 engine(7);
  const auto random = [&](std::uint32_t n) { return static_cast<std::uint32_t>(engine()) % n; };
  for (int round = 0; round < 200; ++round) {
    std::vector<std::uint32_t> windows(1 + random(40));
    for (std::uint32_t& window : windows) window = random(2) * 64;
    const std::uint32_t size = 8 * (1 + random(3));
    const ModelSpec spec =
        SpecOfRows(windows, {1 + random(6), size}, {1 + random(4), size * (1 + random(3))});
    const LayerGroups layers = PlanLayerGroups(spec);
    for (const DType dtype : {DType::kBF16, DType::kI8}) {
      const auto pool = runtime::KvGeometryFor(spec, 16, dtype, 5);
      ASSERT_TRUE(pool.ok()) << pool.status();
      std::uint32_t counted = 0;
      for (std::size_t g = 0; g < layers.groups.size(); ++g) {
        const cache::KvGeometry own = GroupGeometry(*pool, layers, g);
        ASSERT_TRUE(own.Validate().ok()) << own.Validate();
        ASSERT_EQ(own.page_bytes(), pool->page_bytes());
        ASSERT_LE(layers.groups[g].num_layers, own.num_layers);
        ASSERT_EQ(own.num_heads, layers.groups[g].row.num_heads);
        ASSERT_EQ(own.head_size, layers.groups[g].row.head_size);
        ASSERT_LE(own.packed_rows() * own.row_elements(), pool->block_stride());
        counted += layers.groups[g].num_layers;
      }
      ASSERT_EQ(counted, windows.size());
    }
  }
}

TEST(LayerGroupsTest, HeadSizesMustBeMultiplesOfTheSmallest) {
  const ModelSpec spec = SpecOfRows({8, 0}, {2, 16}, {2, 24});
  const auto geometry = runtime::KvGeometryFor(spec, 16, DType::kF32, 4);
  EXPECT_EQ(geometry.status().code(), absl::StatusCode::kUnimplemented);
  EXPECT_NE(std::string(geometry.status().message()).find("layer 1"), std::string::npos);
}

}  // namespace
}  // namespace quire::models
