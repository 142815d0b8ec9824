#include "cache_manager/views/reference/kv_mha_operand.h"

#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include "cache_manager/views/kv_cache_collection.h"
#include "cache_manager/views/kv_cache_concepts.h"
#include "cache_manager/views/reference/kv_continuous_collection.h"
#include "gtest/gtest.h"
#include "tests/cache_manager/kv_test_util.h"

namespace quire::cache::testing {
namespace {

using DynamicParams = KVCacheStaticParams<kDynamicExtent, kDynamicExtent>;

// H, P and S are pairwise different and each scale encodes its coordinates. An operand that swapped
// head and token would read another scale.
TEST(KvMhaOperandTest, OperandTakesTokenBeforeHead) {
  using Collection = PagedKVCacheCollection<std::int8_t, KVCacheStaticParams<3, 80>, 16, float, 16>;
  const KvGeometry g = WithScales(MakeGeometry(4, 2, 1, 16, 3, 80), DType::kI8, 16);
  const AlignedArray<std::int8_t> pool(PoolElements(g));
  const AlignedArray<float> scales(PoolScales(g));
  StepArrays steps(2, LookupStride(2));
  steps.page(1, 0) = 3;
  steps.SetLength(1, 16);
  const auto collection =
      Collection::Create(g, {.blocks = pool.data(), .scales = scales.data()}, steps.inputs);
  ASSERT_TRUE(collection.ok()) << collection.status();
  const auto cache = collection->get_key_cache(0);
  const KVCacheMHAOperand operand{cache};
  const KVCacheScalesMHAOperand scale_operand{cache};
  for (std::uint32_t t = 0; t < 16; ++t) {
    for (std::uint32_t h = 0; h < 3; ++h) {
      for (std::uint32_t s = 0; s < 5; ++s) {
        cache.store_scale<1>(1, h, t, s * 16, {{static_cast<float>(100 * t + 10 * h + s)}});
      }
    }
  }
  for (std::uint32_t t = 0; t < 16; ++t) {
    for (std::uint32_t h = 0; h < 3; ++h) {
      for (std::uint32_t d = 0; d < 80; ++d) {
        const auto want = static_cast<float>(100 * t + 10 * h + d / 16);
        ASSERT_EQ(operand.load_scale<1>(1, t, h, d)[0], want);
        ASSERT_EQ(cache.load_scale<1>(1, h, t, d)[0], want);
        ASSERT_EQ(*operand.scales_block_paged_ptr(1, t, h, d), want);
        ASSERT_EQ(*scale_operand.block_paged_ptr<1>(1, t, h, d), want);
        ASSERT_EQ(operand.block_paged_ptr<1>(1, t, h, d), cache.block_paged_ptr<1>(1, t, h, d));
      }
    }
  }
  EXPECT_EQ(operand.type_name(), "KVCacheMHAOperand<PagedKVCache<int8,h3,d80,p16,q=f32/16>>");
  EXPECT_EQ(scale_operand.type_name(),
            "KVCacheScalesMHAOperand<PagedKVCache<int8,h3,d80,p16,q=f32/16>>");
}

// Computes one query's attention over operands for K and V in key order, with the same arithmetic
// for every operand.
template <typename K, typename V>
std::vector<float> Attend(const K& k, const V& v, std::uint32_t b, std::uint32_t h,
                          std::uint32_t num_new, const std::vector<float>& query) {
  const std::uint32_t keys = num_keys(k, b, num_new);
  std::vector<float> scores(keys);
  float max = -INFINITY;
  for (std::uint32_t t = 0; t < keys; ++t) {
    const auto* key = k.template block_paged_ptr<1>(b, t, h);
    for (std::size_t d = 0; d < query.size(); ++d) scores[t] += query[d] * key[d];
    max = std::max(max, scores[t]);
  }
  float sum = 0;
  for (float& x : scores) sum += x = std::exp(x - max);
  std::vector<float> out(query.size());
  for (std::uint32_t t = 0; t < keys; ++t) {
    const auto* value = v.template block_paged_ptr<1>(b, t, h);
    for (std::size_t d = 0; d < query.size(); ++d) out[d] += scores[t] / sum * value[d];
  }
  return out;
}

constexpr std::uint32_t kHeads = 3, kColumns = 20, kBatch = 3, kNew = 2;
constexpr std::uint32_t kLengths[kBatch] = {35, 1, 62};  // cached tokens; kNew tokens follow

float Value(std::uint32_t kv, std::uint32_t b, std::uint32_t t, std::uint32_t h, std::uint32_t d) {
  return std::sin(static_cast<float>(kv * 7 + b * 131 + t * 17 + h * 5 + d));
}

// Fills all keys of a cache through stores, including those of this step.
template <typename Cache>
void FillCache(const Cache& k, const Cache& v) {
  for (std::uint32_t b = 0; b < kBatch; ++b) {
    for (std::uint32_t t = 0; t < kLengths[b] + kNew; ++t) {
      for (std::uint32_t h = 0; h < kHeads; ++h) {
        for (std::uint32_t d = 0; d < kColumns; ++d) {
          k.template store<1>(b, h, t, d, {{Value(0, b, t, h, d)}});
          v.template store<1>(b, h, t, d, {{Value(1, b, t, h, d)}});
        }
      }
    }
  }
}

template <typename K, typename V>
std::vector<float> AttendAll(const K& k, const V& v) {
  std::vector<float> query(kColumns), all;
  for (std::uint32_t d = 0; d < kColumns; ++d) query[d] = std::cos(static_cast<float>(d));
  for (std::uint32_t b = 0; b < kBatch; ++b) {
    for (std::uint32_t h = 0; h < kHeads; ++h) {
      const auto out = Attend(k, v, b, h, kNew, query);
      all.insert(all.end(), out.begin(), out.end());
    }
  }
  return all;
}

std::vector<float> AttendPaged(std::uint32_t page_size, std::uint32_t seed) {
  using Collection = PagedKVCacheCollection<float, DynamicParams, kDynamicExtent>;
  const KvGeometry g = MakeGeometry(20, 2, 2, page_size, kHeads, kColumns);
  const AlignedArray<float> pool(PoolElements(g));
  for (float& x : pool) x = NAN;  // unused pages must not matter
  StepArrays steps(kBatch, LookupStride(8));
  std::vector<std::uint32_t> ids(19);
  for (std::uint32_t i = 0; i < 19; ++i) ids[i] = i + 1;
  std::mt19937 random(seed);
  std::shuffle(ids.begin(), ids.end(), random);
  std::size_t next = 0;
  for (std::uint32_t b = 0; b < kBatch; ++b) {
    const std::uint32_t pages = (kLengths[b] + kNew + page_size - 1) / page_size;
    for (std::uint32_t c = 0; c < pages; ++c) steps.page(b, c) = ids[next++];
    steps.SetLength(b, kLengths[b]);
  }
  steps.inputs.max_cache_length = 64;
  const auto collection = Collection::Create(g, {.blocks = pool.data()}, steps.inputs);
  EXPECT_TRUE(collection.ok()) << collection.status();
  FillCache(collection->get_key_cache(1), collection->get_value_cache(1));
  const KVCacheMHAOperand k{collection->get_key_cache(1)};
  const KVCacheMHAOperand v{collection->get_value_cache(1)};
  EXPECT_EQ(num_keys(k, 2, kNew), 64);
  return AttendAll(k, v);
}

std::vector<float> AttendContinuous() {
  using Collection = ContinuousBatchingKVCacheCollection<float, DynamicParams>;
  const KvGeometry g = MakeGeometry(5, 2, 2, 67, kHeads, kColumns);
  const AlignedArray<float> pool(PoolElements(g));
  StepArrays steps(kBatch, 0);
  for (std::uint32_t b = 0; b < kBatch; ++b) {
    steps.page(b, 0) = 4 - b;
    steps.SetLength(b, kLengths[b]);
  }
  const auto collection = Collection::Create(g, pool.data(), steps.inputs);
  EXPECT_TRUE(collection.ok()) << collection.status();
  FillCache(collection->get_key_cache(1), collection->get_value_cache(1));
  return AttendAll(KVCacheMHAOperand{collection->get_key_cache(1)},
                   KVCacheMHAOperand{collection->get_value_cache(1)});
}

// A tensor [B, S_max, H, D] with lengths, and the same tokens packed as [T, H, D].
std::vector<float> AttendTensor(bool ragged) {
  constexpr std::uint32_t kMax = 70;
  std::vector<std::uint32_t> lengths, offsets{0};
  for (const std::uint32_t cached : kLengths) {
    lengths.push_back(cached + kNew);
    offsets.push_back(offsets.back() + cached + kNew);
  }
  const std::size_t row = kHeads * kColumns;
  std::vector<float> k((ragged ? offsets.back() : kBatch * kMax) * row, NAN), v = k;
  for (std::uint32_t b = 0; b < kBatch; ++b) {
    for (std::uint32_t t = 0; t < lengths[b]; ++t) {
      const std::size_t at = (ragged ? offsets[b] + t : b * kMax + t) * row;
      for (std::uint32_t h = 0; h < kHeads; ++h) {
        for (std::uint32_t d = 0; d < kColumns; ++d) {
          k[at + h * kColumns + d] = Value(0, b, t, h, d);
          v[at + h * kColumns + d] = Value(1, b, t, h, d);
        }
      }
    }
  }
  if (ragged) {
    const auto operand = [&](const std::vector<float>& x) {
      return RaggedMHAOperand<float>::FromTensor(
          TensorView<const float, 3>::RowMajor(x.data(), {offsets.back(), kHeads, kColumns}),
          TensorView<const std::uint32_t, 1>::RowMajor(offsets.data(), {kBatch + 1}), 64);
    };
    EXPECT_EQ(operand(k).max_context_length(), 64);
    EXPECT_EQ(num_keys(operand(k), 2, kNew), 64) << "the length already counts this step";
    return AttendAll(operand(k), operand(v));
  }
  const auto operand = [&](const std::vector<float>& x) {
    return ContiguousMHAOperand<float>::FromTensor(
        TensorView<const float, 4>::RowMajor(x.data(), {kBatch, kMax, kHeads, kColumns}),
        lengths.data());
  };
  EXPECT_EQ(num_keys(operand(k), 2, kNew), 64);
  return AttendAll(operand(k), operand(v));
}

// Results are bitwise equal for every operand, page size and page order. All memory without a key
// is NaN.
TEST(KvMhaOperandTest, EveryOperandGivesTheSameAttention) {
  const std::vector<float> want = AttendContinuous();
  ASSERT_EQ(want.size(), kBatch * kHeads * kColumns);
  for (const float x : want) ASSERT_TRUE(std::isfinite(x));
  EXPECT_EQ(AttendTensor(/*ragged=*/false), want);
  EXPECT_EQ(AttendTensor(/*ragged=*/true), want);
  for (const std::uint32_t page_size : {16u, 32u, 64u, 128u}) {
    for (std::uint32_t seed = 0; seed < 5; ++seed) {
      EXPECT_EQ(AttendPaged(page_size, seed), want) << "page size " << page_size;
    }
  }
}

TEST(KvMhaOperandTest, TensorsWithoutLengthsAreFull) {
  const std::vector<float> data(2 * 5 * 3 * 4);
  const auto tensor = TensorView<const float, 4>::RowMajor(data.data(), {2, 5, 3, 4});
  const auto operand = ContiguousMHAOperand<float>::FromTensor(tensor);
  EXPECT_EQ(operand.cache_length(1), 5);
  EXPECT_EQ(operand.max_context_length(), 5);
  EXPECT_EQ(operand.num_kv_rows(), 10);
  EXPECT_EQ(operand.get_tma_row(-3), -1);
  EXPECT_EQ(operand.get_tma_row(7), 7);
  EXPECT_EQ((operand.populate<64, 1>(1, 3).get_row(9)), 1 * 5 + 3 + 9);
  EXPECT_EQ(operand.type_name(), "ContiguousMHAOperand<f32>");
  EXPECT_EQ(RaggedMHAOperand<BF16>::type_name(), "RaggedMHAOperand<bf16>");
  EXPECT_DEATH(operand.row_idx(2, 0), "check failed");
  TensorView<const float, 4> gaps = tensor;
  gaps.strides[0] += 4;
  EXPECT_DEATH(ContiguousMHAOperand<float>::FromTensor(gaps), "check failed");
}

}  // namespace
}  // namespace quire::cache::testing
