// Compares the keys that indexers select for every query of the fixtures with those of transformers
// (testdata/models/make_selections.py). The keys are read from the buffers of the decoder. Layers
// after the indexer are omitted, because they would overwrite the selection.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_format.h"
#include "base/status.h"
#include "base/thread_pool.h"
#include "cache_manager/pool/kv_pool.h"
#include "kernels/kv_store/kv_dispatch.h"
#include "models/blocks/decoder.h"
#include "models/blocks/layer_groups.h"
#include "nlohmann/json.hpp"
#include "runtime/memory_plan.h"
#include "runtime/model.h"
#include "tests/parity/parity_harness.h"

namespace quire::models::parity {
namespace {

constexpr std::uint32_t kPageSize = 16;
constexpr std::uint32_t kMaxTokens = 336;  // the longest prompt and its greedy tokens
constexpr std::uint32_t kPages = kMaxTokens / kPageSize;

// Returns the digest of make_selections.py. REQUIRES: keys are ascending.
std::string DigestOf(const std::vector<std::uint32_t>& keys) {
  std::uint32_t hash = 0x811c9dc5u;
  for (const std::uint32_t key : keys) {
    for (const std::uint32_t byte : {key & 0xffu, key >> 8}) hash = (hash ^ byte) * 0x01000193u;
  }
  return absl::StrFormat("%04x", (hash >> 16) ^ (hash & 0xffffu));
}

// The first layers of a model, and one sequence whose pages are in descending order.
class Indexer {
 public:
  // Selects the keys of layer `layer`, which has an indexer.
  static absl::StatusOr<std::unique_ptr<Indexer>> Create(const runtime::Model& model,
                                                         const kernels::Backend& backend,
                                                         std::size_t layer) {
    auto indexer = std::make_unique<Indexer>(model, backend);
    indexer->spec_.layers.resize(layer + 1);
    indexer->layers_ = PlanLayerGroups(indexer->spec_);
    QUIRE_ASSIGN_OR_RETURN(
        indexer->buffers_,
        StepBuffers::Allocate(indexer->spec_, {.max_rows = 1, .max_step_tokens = kMaxTokens}));
    QUIRE_ASSIGN_OR_RETURN(
        const cache::KvGeometry geometry,
        runtime::KvGeometryFor(indexer->spec_, kPageSize, DType::kF32, kPages + 1));
    QUIRE_ASSIGN_OR_RETURN(cache::KvPool pool, cache::KvPool::Create(geometry));
    indexer->pool_ = std::make_unique<cache::KvPool>(std::move(pool));
    for (std::uint32_t i = 0; i < kPages; ++i) indexer->table_[i] = kPages - i;
    return indexer;
  }

  Indexer(const runtime::Model& model, const kernels::Backend& backend)
      : model_(model), backend_(backend), spec_(model.spec) {}

  // Computes tokens [first, first + count) of a sequence whose earlier tokens are cached, and
  // appends the digest of each query that sees more keys than it selects.
  absl::Status Step(const std::vector<std::int32_t>& tokens, std::uint32_t first,
                    std::uint32_t count, std::string* digests) {
    const cache::KvStepInputs inputs{.lookup_table = table_,
                                     .cache_lengths = &first,
                                     .lookup_stride = kStride,
                                     .max_rows = 1,
                                     .max_seq_length = count,
                                     .max_cache_length = first + count,
                                     .max_history_length = first};
    QUIRE_ASSIGN_OR_RETURN(const kernels::AnyKvCollection kv,
                           kernels::MakeKvCollection(pool_->geometry(), pool_->blocks(), inputs));
    QUIRE_ASSIGN_OR_RETURN(const runtime::IndexRows rows,
                           runtime::IndexRowsFor(spec_, pool_->geometry()));
    auto* const base = static_cast<std::byte*>(pool_->blocks()) + rows.offset_bytes;
    QUIRE_ASSIGN_OR_RETURN(const kernels::AnyKvCollection index,
                           kernels::MakeKvCollection(rows.geometry, base, inputs));
    for (std::uint32_t i = 0; i < count; ++i) {
      buffers_.tokens[i] = tokens[first + i];
      buffers_.positions[i] = static_cast<std::int32_t>(first + i);
    }
    buffers_.row_offsets[0] = 0;
    buffers_.row_offsets[1] = count;
    QUIRE_RETURN_IF_ERROR(DecoderForward(spec_, *model_.weights,
                                         {.backend = &backend_,
                                          .kv = {&kv, 1},
                                          .layers = &layers_,
                                          .buffers = &buffers_,
                                          .num_tokens = count,
                                          .batch_size = 1,
                                          .index = &index}));
    const std::uint32_t topk = spec_.layers.back().mla.index->topk;
    const std::uint32_t rows_per_page =
        std::visit([](const auto& view) { return view.row_stride(); }, kernels::LatentView(kv, 0));
    for (std::uint32_t i = 0; i < count; ++i) {
      if (first + i >= topk) *digests += DigestOf(KeysOf(i, rows_per_page));
    }
    return absl::OkStatus();
  }

 private:
  static constexpr std::uint32_t kStride = (kPages + 7) / 8 * 8 + 16;

  // Converts the rows of the view that a query of the step reads to keys.
  std::vector<std::uint32_t> KeysOf(std::uint32_t query, std::uint32_t rows_per_page) const {
    const IndexBuffers& b = buffers_.index;
    std::vector<std::uint32_t> keys;
    for (std::uint32_t k = 0; k <= b.last_selected[query]; ++k) {
      const auto row = static_cast<std::uint32_t>(b.selected[query * b.max_selected + k]);
      keys.push_back((kPages - row / rows_per_page) * kPageSize + row % rows_per_page);
    }
    return keys;
  }

  const runtime::Model& model_;
  const kernels::Backend& backend_;
  ModelSpec spec_;
  LayerGroups layers_;
  StepBuffers buffers_;
  std::unique_ptr<cache::KvPool> pool_;
  alignas(32) std::uint32_t table_[kStride] = {};
};

class SelectionsTest : public testing::TestWithParam<const char*> {};

TEST_P(SelectionsTest, EveryQuerySelectsTheKeysOfTheReference) {
  std::ifstream file(FixturePath(GetParam()) + "/selections.json");
  const auto want = nlohmann::json::parse(file);
  const auto reference = ReadReference(GetParam());
  ASSERT_TRUE(reference.ok()) << reference.status();
  const auto files = formats::ModelFiles::FromDirectory(FixturePath(GetParam()));
  ASSERT_TRUE(files.ok()) << files.status();
  ThreadPool threads(1);
  const auto backend = kernels::Backend::Create(Device::Cpu(), &threads);
  ASSERT_TRUE(backend.ok()) << backend.status();
  const auto model = runtime::LoadModel(*files, *backend, {});
  ASSERT_TRUE(model.ok()) << model.status();
  std::size_t num_queries = 0;
  for (std::size_t layer = 0; layer < (*model)->spec.layers.size(); ++layer) {
    if (!(*model)->spec.layers[layer].mla.has_indexer()) continue;
    const auto indexer = Indexer::Create(**model, *backend, layer);
    ASSERT_TRUE(indexer.ok()) << indexer.status();
    for (const ReferencePrompt& prompt : reference->prompts) {
      std::vector<std::int32_t> tokens = prompt.tokens;
      tokens.insert(tokens.end(), prompt.greedy.begin(), prompt.greedy.end() - 1);
      std::string got;
      // The prompt runs in chunks, then one token at a time.
      for (std::uint32_t first = 0; first < tokens.size();) {
        const auto left = static_cast<std::uint32_t>(prompt.tokens.size()) - first;
        const std::uint32_t count = first < prompt.tokens.size() ? std::min(left, 50u) : 1;
        const absl::Status status = (*indexer)->Step(tokens, first, count, &got);
        ASSERT_TRUE(status.ok()) << status;
        first += count;
      }
      const std::string& digests =
          want.at(prompt.id).at(std::to_string(layer)).get_ref<const std::string&>();
      ASSERT_EQ(got.size(), digests.size()) << prompt.id;
      for (std::size_t i = 0; i < got.size(); i += 4, ++num_queries) {
        EXPECT_EQ(got.substr(i, 4), digests.substr(i, 4))
            << prompt.id << ", layer " << layer << ", query "
            << tokens.size() - got.size() / 4 + i / 4;
      }
    }
  }
  EXPECT_EQ(num_queries, 2692u);
}

INSTANTIATE_TEST_SUITE_P(Fixtures, SelectionsTest,
                         testing::Values("deepseek-v32-bf16", "glm-moe-dsa-bf16"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

}  // namespace
}  // namespace quire::models::parity
