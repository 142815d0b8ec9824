#include "cache_manager/views/kv_quantize.h"

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "cache_manager/views/kv_cache_collection.h"
#include "gtest/gtest.h"
#include "tests/cache_manager/kv_test_util.h"

namespace quire::cache::testing {
namespace {

template <typename Q>
class KvQuantizeTest : public ::testing::Test {
 protected:
  // Largest |x - dequantized| that section 7 of docs/kv_cache.md allows, plus f32 rounding.
  static double Bound(double x, double scale) {
    const double rounding = std::abs(x) * 0x1p-22;
    if (std::is_same_v<Q, std::int8_t>) return scale / 2 + rounding;
    return std::max(std::abs(x) * 0x1p-4, scale * 0x1p-10) + rounding;
  }
  // Quantizes x and checks scale and error bound.
  static void ExpectBounds(const std::vector<float>& x) {
    std::vector<Q> q(x.size());
    const GroupScale group =
        QuantizeGroup(x.data(), static_cast<std::uint32_t>(x.size()), q.data());
    EXPECT_TRUE(group.finite);
    float amax = 0;
    for (const float v : x) amax = std::max(amax, std::abs(v));
    EXPECT_EQ(group.scale, amax == 0 ? 1.0f : std::max(amax / kQuantizedMax<Q>, 0x1p-126f));
    for (std::size_t i = 0; i < x.size(); ++i) {
      const double back = DequantizeValue(q[i], group.scale);
      EXPECT_LE(std::abs(back - x[i]), Bound(x[i], group.scale))
          << x[i] << " scale " << group.scale;
    }
  }
};

using Elements = ::testing::Types<F8E4M3, std::int8_t>;
TYPED_TEST_SUITE(KvQuantizeTest, Elements);

TYPED_TEST(KvQuantizeTest, ErrorStaysInBounds) {
  std::mt19937 random(7);
  std::normal_distribution<float> normal;
  for (int exponent = -120; exponent <= 120; exponent += 8) {
    std::vector<float> x(128);
    for (float& v : x) v = std::ldexp(normal(random), exponent);
    x[3] = 0;
    x[5] *= 0x1p-12f;
    this->ExpectBounds(x);
  }
  const float max = std::numeric_limits<float>::max();
  this->ExpectBounds({max / 2, -max / 2, max / 3, 1.0f});
}

TYPED_TEST(KvQuantizeTest, ZerosAndSubnormals) {
  this->ExpectBounds(std::vector<float>(16));
  this->ExpectBounds({-0.0f, 0.0f});
  const float tiny = std::numeric_limits<float>::denorm_min();
  std::vector<TypeParam> q(3);
  const std::vector<float> x{tiny, -0x1p-130f, 0x1p-127f};
  const GroupScale group = QuantizeGroup(x.data(), 3, q.data());
  EXPECT_EQ(group.scale, 0x1p-126f) << "a scale is never subnormal";
  this->ExpectBounds(x);
}

TYPED_TEST(KvQuantizeTest, NonFiniteGroupsBecomeZerosAndAreReported) {
  for (const float bad :
       {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(),
        std::numeric_limits<float>::quiet_NaN()}) {
    for (const std::size_t at : {std::size_t{0}, std::size_t{7}}) {
      std::vector<float> x(8, 3.0f);
      x[at] = bad;
      std::vector<TypeParam> q(8, TypeParam{1});
      const GroupScale group = QuantizeGroup(x.data(), 8, q.data());
      EXPECT_FALSE(group.finite);
      EXPECT_EQ(group.scale, 1.0f);
      for (const TypeParam v : q) EXPECT_EQ(ToFloat(v), 0.0f);
    }
  }
}

TEST(KvQuantizeInt8Test, TiesGoToEvenAndTheEndsSaturate) {
  const std::vector<float> x{127.0f, 0.5f, 1.5f, 2.5f, -0.5f, -1.5f, -127.0f, 63.5f};
  std::vector<std::int8_t> q(x.size());
  EXPECT_EQ(QuantizeGroup(x.data(), 8, q.data()).scale, 1.0f);
  EXPECT_EQ(q, (std::vector<std::int8_t>{127, 0, 2, 2, 0, -2, -127, 64}));
  EXPECT_EQ(QuantizeValue<std::int8_t>(1000.0f, 1.0f), 127);
  EXPECT_EQ(QuantizeValue<std::int8_t>(-1000.0f, 1.0f), -127) << "symmetric: -128 is unused";
}

TEST(KvQuantizeFp8Test, EveryFiniteByteRoundTrips) {
  for (int bits = 0; bits < 256; ++bits) {
    const F8E4M3 q{static_cast<std::uint8_t>(bits)};
    if ((bits & 0x7f) == 0x7f) continue;  // NaN
    EXPECT_EQ(QuantizeValue<F8E4M3>(q.ToFloat(), 1.0f).bits, q.bits);
  }
  EXPECT_EQ(QuantizeValue<F8E4M3>(1e9f, 1.0f).ToFloat(), 448.0f);
}

// Quantizes, stores, copies the page and its scales, and loads, like a move through a tier.
TEST(KvQuantizeTest, SurvivesAMoveOfItsPage) {
  using Params = KVCacheStaticParams<2, 48>;
  using Collection = PagedKVCacheCollection<std::int8_t, Params, 16, float, 16>;
  const KvGeometry g = WithScales(MakeGeometry(4, 2, 1, 16, 2, 48), DType::kI8, 16);
  const AlignedArray<std::int8_t> pool(PoolElements(g));
  const AlignedArray<float> scales(PoolScales(g));
  StepArrays steps(1, LookupStride(1));
  steps.page(0, 0) = 1;
  const auto collection =
      Collection::Create(g, {.blocks = pool.data(), .scales = scales.data()}, steps.inputs);
  ASSERT_TRUE(collection.ok()) << collection.status();
  const auto cache = collection->get_value_cache(0);
  std::mt19937 random(5);
  std::normal_distribution<float> normal;
  std::vector<float> x(16 * 2 * 48);
  for (float& v : x) v = normal(random);
  for (std::uint32_t t = 0; t < 16; ++t) {
    for (std::uint32_t h = 0; h < 2; ++h) {
      for (std::uint32_t d = 0; d < 48; d += 16) {
        Vec<std::int8_t, 16> q;
        const GroupScale group = QuantizeGroup(&x[(t * 2 + h) * 48 + d], 16, q.lane);
        cache.store<16>(0, h, t, d, q);
        cache.store_scale<1>(0, h, t, d, {{group.scale}});
      }
    }
  }
  std::memcpy(pool.data() + 3 * g.block_stride(), pool.data() + g.block_stride(),
              static_cast<std::size_t>(g.block_stride()));
  std::memcpy(scales.data() + 3 * g.scale_block_stride(), scales.data() + g.scale_block_stride(),
              static_cast<std::size_t>(g.scale_block_stride()) * sizeof(float));
  steps.page(0, 0) = 3;
  for (std::uint32_t t = 0; t < 16; ++t) {
    for (std::uint32_t h = 0; h < 2; ++h) {
      for (std::uint32_t d = 0; d < 48; ++d) {
        const float scale = cache.load_scale<1>(0, h, t, d)[0];
        EXPECT_NEAR(cache.load<1>(0, h, t, d)[0], x[(t * 2 + h) * 48 + d], scale / 2 * 1.0001f);
      }
    }
  }
}

}  // namespace
}  // namespace quire::cache::testing
