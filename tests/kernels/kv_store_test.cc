// Compares the vectorized KV page writers with the definitions in base/dtype.h and
// cache_manager/views/kv_quantize.h, byte for byte.

#include "kernels/kv_store/kv_store.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "cache_manager/views/kv_quantize.h"
#include "tests/kernels/kernel_test_util.h"

namespace quire::kernels {
namespace {

// Heads of ordinary, tiny, huge and special values, some of odd length.
std::vector<std::vector<float>> Heads() {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  std::vector<std::vector<float>> heads;
  std::uint32_t seed = 1;
  for (const std::size_t count : {1, 15, 16, 20, 64, 100, 128}) {
    for (const float deviation : {1.0f, 1e-20f, 1e30f, 1e-44f}) {
      heads.push_back(RandomFloats(count, ++seed, deviation));
    }
  }
  // The magnitudes cover every quantized value, subnormals and ties.
  for (int i = 0; i < 200; ++i) {
    std::vector<float> head = RandomFloats(64, ++seed);
    for (std::size_t j = 0; j < head.size(); ++j) {
      head[j] = std::ldexp(head[j], -static_cast<int>(j % 20));
    }
    heads.push_back(head);
  }
  std::vector<float> ties = {448.0f};
  for (int i = -200; i < 200; ++i) ties.push_back(static_cast<float>(i) * 0x1p-10f);
  for (int i = 0; i < 64; ++i) ties.push_back((16.0f + static_cast<float>(i)) * 0.5f);
  heads.push_back(ties);
  std::vector<float> halves = {127.0f, -127.0f};
  for (int i = -100; i < 100; ++i) halves.push_back(static_cast<float>(i) + 0.5f);
  heads.push_back(halves);
  heads.push_back(std::vector<float>(32, 0.0f));
  heads.push_back({-0.0f, 0.0f, -0.0f});
  for (const float bad : {kInf, -kInf, kNan}) {
    for (const std::size_t at : {std::size_t{0}, std::size_t{17}, std::size_t{32}}) {
      std::vector<float> head = RandomFloats(33, ++seed);
      head[at] = bad;
      heads.push_back(head);
    }
  }
  heads.push_back({std::numeric_limits<float>::max(), 1.0f, -3e38f});
  heads.push_back({std::numeric_limits<float>::denorm_min(), 0.0f});
  return heads;
}

template <typename T>
void ExpectQuantizeGroup() {
  for (const std::string& isa : AvailableIsas()) {
    const ScopedIsa scoped(isa);
    for (const std::vector<float>& head : Heads()) {
      const auto count = static_cast<std::uint32_t>(head.size());
      std::vector<T> expected(count), q(count + 1);
      std::memset(static_cast<void*>(q.data()), 0x55, q.size());
      const cache::GroupScale group = cache::QuantizeGroup<T>(head.data(), count, expected.data());
      const float scale = internal::QuantizeHeadSimd(head.data(), count, q.data());
      EXPECT_EQ(std::bit_cast<std::uint32_t>(scale), std::bit_cast<std::uint32_t>(group.scale))
          << isa;
      EXPECT_EQ(std::memcmp(q.data(), expected.data(), count), 0)
          << isa << " count " << count << " first " << head[0];
      EXPECT_EQ(std::bit_cast<std::uint8_t>(q[count]), 0x55);
    }
  }
}

TEST(KvStoreTest, Int8HeadsEqualQuantizeGroup) {
  ExpectQuantizeGroup<std::int8_t>();
}
TEST(KvStoreTest, Fp8HeadsEqualQuantizeGroup) {
  ExpectQuantizeGroup<F8E4M3>();
}

TEST(KvStoreTest, Bf16EqualsFromFloat) {
  for (const std::string& isa : AvailableIsas()) {
    const ScopedIsa scoped(isa);
    for (std::vector<float> head : Heads()) {
      head.push_back(std::bit_cast<float>(0x7f800001u));  // a signalling NaN
      std::vector<BF16> to(head.size());
      internal::NarrowSimd(head.data(), head.size(), to.data());
      for (std::size_t i = 0; i < head.size(); ++i) {
        EXPECT_EQ(to[i].bits, BF16::FromFloat(head[i]).bits) << isa << " " << head[i];
      }
    }
  }
}

// Through the op, values and scales belong to the right token and head, and the null page is not
// written.
TEST(KvStoreTest, ScalesBelongToTheirTokensAndHeads) {
  const TestBackend backend(2);
  TestPool pool({DType::kI8, 1, 3, 20, 16}, {5, 0}, {30, 4}, 2);
  const auto k = RandomFloats(34 * 60, 3);
  const auto v = RandomFloats(34 * 60, 4, 7.0f);
  const AnyKvView keys = pool.keys();
  const AnyKvView values = pool.values();
  ASSERT_TRUE(
      KvStore(*backend, {&keys, &values, k.data(), v.data(), pool.row_offsets(), 60, 60, 2}).ok());
  const auto& view = std::get<KvView<std::int8_t>>(values);
  const std::vector<float> stored = AsStored(v, DType::kI8, 20);
  for (std::uint32_t m = 0; m < 34; ++m) {
    const std::uint32_t b = m < 30 ? 0 : 1;
    const std::uint32_t t = m < 30 ? 5 + m : m - 30;
    for (std::uint32_t i = 0; i < 60; ++i) {
      EXPECT_EQ((view.load<1, float>(b, i / 20, t, i % 20)[0]), stored[m * 60 + i]);
    }
  }
  EXPECT_TRUE(std::isnan(*view.scales_block_paged_ptr(0, 4, 2)));  // before the step: untouched
}

}  // namespace
}  // namespace quire::kernels
