#include "kernels/attention/attention.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "absl/strings/str_cat.h"
#include "kernels/attention/attention_shares.h"
#include "tests/kernels/attention_sequences.h"
#include "tests/kernels/kernel_test_util.h"

namespace quire::kernels {
namespace {

class AttentionParityTest : public testing::TestWithParam<AttentionCase> {};

TEST_P(AttentionParityTest, EqualsReferenceAndDouble) {
  const AttentionCase c = GetParam();
  const TestBackend backend(c.threads);
  const Sequences s(c, {1, 15, 16, 17, 33, 70}, 1);
  const float scale = 1.0f / std::sqrt(static_cast<float>(c.head_size));
  const std::vector<std::uint32_t> none(s.lengths.size(), 0);
  std::vector<double> exact;
  for (std::uint32_t b = 0; b < s.lengths.size(); ++b) {
    for (std::uint32_t t = 0; t < s.lengths[b]; ++t) {
      const auto row = ExactRow(s, b, t, scale);
      exact.insert(exact.end(), row.begin(), row.end());
    }
  }
  TestPool pool = MakePool(s, 3);
  EXPECT_LE(RelativeError(RunStep(*backend, pool, s, none, s.lengths, false), exact), 2e-6);
  for (const std::string& isa : AvailableIsas()) {
    const ScopedIsa scoped(isa);
    TestPool clean = MakePool(s, 4);
    EXPECT_LE(RelativeError(RunStep(*backend, clean, s, none, s.lengths), exact), 1e-6) << isa;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, AttentionParityTest,
    testing::Values(
        AttentionCase{DType::kF32, 1, 1, 8, 16, 1}, AttentionCase{DType::kF32, 4, 2, 64, 16, 2},
        AttentionCase{DType::kBF16, 4, 1, 32, 32, 3}, AttentionCase{DType::kF16, 2, 2, 80, 16, 1},
        AttentionCase{DType::kBF16, 6, 2, 20, 64, 7}, AttentionCase{DType::kF32, 8, 1, 128, 128, 2},
        AttentionCase{DType::kBF16, 3, 1, 1, 16, 1}, AttentionCase{DType::kBF16, 20, 1, 64, 16, 2},
        AttentionCase{DType::kBF16, 7, 7, 48, 16, 3}, AttentionCase{DType::kI8, 4, 2, 64, 16, 2},
        AttentionCase{DType::kI8, 6, 2, 20, 32, 3}, AttentionCase{DType::kI8, 16, 1, 96, 16, 1},
        AttentionCase{DType::kF8E4M3, 8, 4, 128, 64, 2},
        AttentionCase{DType::kF8E4M3, 3, 3, 36, 16, 1},
        AttentionCase{DType::kF8E4M3, 16, 2, 32, 16, 7},
        AttentionCase{DType::kF16, 16, 2, 100, 16, 2}),
    [](const auto& info) {
      const AttentionCase& c = info.param;
      return absl::StrCat(DTypeName(c.dtype), "_h", c.heads, "_kv", c.kv_heads, "_d", c.head_size,
                          "_p", c.page_size, "_t", c.threads);
    });

class AttentionTypeTest : public testing::TestWithParam<DType> {};
INSTANTIATE_TEST_SUITE_P(Types, AttentionTypeTest,
                         testing::Values(DType::kBF16, DType::kI8, DType::kF8E4M3),
                         [](const auto& info) { return std::string(DTypeName(info.param)); });

TEST_P(AttentionTypeTest, ReducesSpansCorrectly) {
  const AttentionCase c{GetParam(), 4, 2, 16, 16, 1};
  const Sequences s(c, {1100, 600}, 5);
  for (const int threads : {1, 7}) {
    const TestBackend backend(threads);
    TestPool pool = MakePool(s, 6);
    RunStep(*backend, pool, s, {0, 0}, {1090, 599});
    // Ten rows and one: so few blocks that several threads cut them along their spans.
    const auto out = RunStep(*backend, pool, s, {1090, 599}, {10, 1});
    std::vector<double> exact;
    for (std::uint32_t t = 1090; t < 1100; ++t) {
      const auto row = ExactRow(s, 0, t, 0.25f);
      exact.insert(exact.end(), row.begin(), row.end());
    }
    const auto row = ExactRow(s, 1, 599, 0.25f);
    exact.insert(exact.end(), row.begin(), row.end());
    EXPECT_LE(RelativeError(out, exact), 1e-6) << threads;
  }
}

// Compares row (b, t) of the one-shot output with the same row computed in any other way.
TEST_P(AttentionTypeTest, BitsDoNotDependOnChunksBatchPagesOrThreads) {
  const AttentionCase c{GetParam(), 6, 2, 48, 16, 1};
  const Sequences s(c, {700, 40, 129}, 7);
  const std::size_t columns = s.q_columns();
  for (const std::string& isa : AvailableIsas()) {
    const ScopedIsa scoped(isa);
    std::vector<float> whole;
    {
      const TestBackend backend(1);
      TestPool pool = MakePool(s, 8);
      whole = RunStep(*backend, pool, s, {0, 0, 0}, s.lengths);
    }
    std::uint32_t seed = 9;
    for (const int threads : {1, 2, 3, 7}) {
      const TestBackend backend(threads);
      for (const std::uint32_t chunk : {1u, 16u, 100u, 513u}) {
        // A single token per step would take long for the first sequences' 700 tokens, so start at
        // 500.
        const std::uint32_t first = chunk == 1 ? 500 : 0;
        TestPool pool = MakePool(s, ++seed);
        std::vector<std::uint32_t> done(3, 0);
        if (first > 0) {
          RunStep(*backend, pool, s, {0, 0, 0}, {first, 0, 0});
          done[0] = first;
        }
        for (std::uint32_t step = 0; done != s.lengths && step < 230; ++step) {
          std::vector<std::uint32_t> fresh;
          for (std::uint32_t b = 0; b < 3; ++b) {
            fresh.push_back(std::min(chunk + b, s.lengths[b] - done[b]));
          }
          const auto out = RunStep(*backend, pool, s, done, fresh);
          std::size_t row = 0;
          for (std::uint32_t b = 0; b < 3; ++b) {
            for (std::uint32_t i = 0; i < fresh[b]; ++i, ++row) {
              ASSERT_EQ(std::memcmp(out.data() + row * columns,
                                    whole.data() + s.token(b, done[b] + i) * columns, columns * 4),
                        0)
                  << isa << " threads " << threads << " chunk " << chunk << " sequence " << b
                  << " position " << done[b] + i;
            }
            done[b] += fresh[b];
          }
        }
        ASSERT_EQ(done, s.lengths);
      }
    }
  }
}

TEST_P(AttentionTypeTest, FusedMultiplyAddWidthsGiveEqualBits) {
  const auto isas = AvailableIsas();
  if (std::count(isas.begin(), isas.end(), "avx512") == 0) {
    GTEST_SKIP() << "needs a machine with AVX-512";
  }
  // f16 represents bf16 here: both are widened in registers, f16 by more steps.
  const DType dtype = GetParam() == DType::kBF16 ? DType::kF16 : GetParam();
  const Sequences s({dtype, 4, 2, 48, 16, 1}, {600}, 20);
  const TestBackend backend(2);
  std::vector<float> out[2];
  for (int i = 0; i < 2; ++i) {
    const ScopedIsa scoped(i == 0 ? "avx512" : "avx2");
    TestPool pool = MakePool(s, 21);
    out[i] = RunStep(*backend, pool, s, {0}, {600});
  }
  EXPECT_EQ(std::memcmp(out[0].data(), out[1].data(), out[0].size() * 4), 0);
}

// `fresh` rows of each of `sequences` sequences of 8192 tokens (16 spans) on 7 threads.
internal::AttentionShares SharesOf(const TestPool::Shape& shape, std::uint32_t num_heads,
                                   std::uint32_t sequences, std::uint32_t fresh) {
  const TestPool pool(shape, std::vector<std::uint32_t>(sequences, 8192 - fresh),
                      std::vector<std::uint32_t>(sequences, fresh), 40);
  const AnyKvView keys = pool.keys();
  const AnyKvView values = pool.values();
  return internal::ShareAttention({.keys = &keys,
                                   .values = &values,
                                   .q = nullptr,
                                   .out = nullptr,
                                   .row_offsets = pool.row_offsets(),
                                   .q_stride = num_heads * shape.head_size,
                                   .out_stride = num_heads * shape.head_size,
                                   .batch_size = sequences,
                                   .num_heads = num_heads,
                                   .scale = 1},
                                  7);
}

TEST(AttentionSharesTest, CutsFewLongSequencesForAllThreads) {
  const TestPool::Shape grouped{.dtype = DType::kI8, .heads = 8, .head_size = 128};
  for (const std::uint32_t sequences : {1u, 2u}) {
    const auto shares = SharesOf(grouped, 32, sequences, 1);
    EXPECT_GE(shares.items, 14) << sequences;
    EXPECT_GE(shares.reductions, sequences) << sequences;
  }
}

// MLA has one KV head with a large group. 20 rows are fewer than a thread's share, but their states
// would take 100 MB.
TEST(AttentionSharesTest, BoundsTheMemoryOfStates) {
  const TestPool::Shape latent{.dtype = DType::kI8, .heads = 1, .head_size = 576};
  constexpr std::size_t kRowBytes = std::size_t{16} * 128 * (576 + 32) * sizeof(float);
  constexpr std::size_t kListBytes = 64 << 10;
  const auto chunk = SharesOf(latent, 128, 1, 20);
  EXPECT_GT(20 * kRowBytes, internal::kAttentionPartialBytes + kRowBytes);
  EXPECT_LE(chunk.bytes, internal::kAttentionPartialBytes + kRowBytes + kListBytes);
  EXPECT_GE(chunk.items, 20);
  // Fewer rows fit.
  EXPECT_EQ(SharesOf(latent, 128, 1, 8).reductions, 8);
  // Decode tokens are cut whatever their states take.
  const auto generated = SharesOf(latent, 1024, 2, 1);
  EXPECT_EQ(generated.reductions, 2);
  EXPECT_GT(generated.bytes, internal::kAttentionPartialBytes);
}

TEST(AttentionTest, NanInALaterTokenHasNoEffect) {
  const Sequences clean({DType::kF32, 2, 1, 16, 16, 1}, {20}, 30);
  Sequences poisoned = clean;
  poisoned.v[10 * 16 + 3] = std::numeric_limits<float>::quiet_NaN();
  const TestBackend backend(1);
  TestPool a = MakePool(clean, 31);
  TestPool b = MakePool(clean, 31);
  const auto expected = RunStep(*backend, a, clean, {0}, {20});
  const auto out = RunStep(*backend, b, poisoned, {0}, {20});
  const std::size_t columns = clean.q_columns();
  EXPECT_EQ(std::memcmp(out.data(), expected.data(), 10 * columns * 4), 0);
  for (std::size_t row = 10; row < 20; ++row) EXPECT_TRUE(std::isnan(out[row * columns + 3]));
}

TEST(AttentionTest, NanInAKeyMakesTheRowNan) {
  Sequences s({DType::kF32, 1, 1, 16, 16, 1}, {40}, 32);
  s.k[5 * 16] = std::numeric_limits<float>::quiet_NaN();
  const TestBackend backend(1);
  for (const std::string& isa : AvailableIsas()) {
    const ScopedIsa scoped(isa);
    TestPool pool = MakePool(s, 33);
    const auto out = RunStep(*backend, pool, s, {0}, {40});
    EXPECT_TRUE(std::isfinite(out[4 * 16])) << isa;
    EXPECT_TRUE(std::isnan(out[5 * 16])) << isa;
    EXPECT_TRUE(std::isnan(out[39 * 16])) << isa;
  }
}

// Few rows use registers, many use widened copies in blocks of 8, 4, 2 and 1. A row must not depend
// on that, on the rest of the step, or on the end of its page.
TEST_P(AttentionTypeTest, BitsDoNotDependOnOtherHeadBlocks) {
  for (const std::string& isa : AvailableIsas()) {
    const ScopedIsa scoped(isa);
    for (const std::uint32_t group : {1u, 3u, 5u, 8u, 15u}) {
      const AttentionCase c{GetParam(), 2 * group, 2, 32, 16, 1};
      const Sequences s(c, {150}, 40 + group);
      const TestBackend backend(2);
      TestPool pool = MakePool(s, 41);
      const auto whole = RunStep(*backend, pool, s, {0}, {150});
      for (const std::uint32_t t : {0u, 15u, 16u, 63u, 64u, 65u, 127u, 128u, 149u}) {
        const auto row = RunStep(*backend, pool, s, {t}, {1});
        EXPECT_EQ(std::memcmp(row.data(), whole.data() + t * s.q_columns(), s.q_columns() * 4), 0)
            << isa << " group " << group << " position " << t;
      }
    }
  }
}

// Only the long sequence among short ones is cut along its spans.
TEST_P(AttentionTypeTest, LongAndShortSequencesShareAStep) {
  const AttentionCase c{GetParam(), 4, 1, 32, 64, 1};
  const Sequences s(c, {2100, 5, 600, 1}, 50);
  std::vector<float> first;
  for (const int threads : {1, 2, 3, 7}) {
    const TestBackend backend(threads);
    TestPool pool = MakePool(s, 51 + static_cast<std::uint32_t>(threads));
    RunStep(*backend, pool, s, {0, 0, 0, 0}, {2098, 0, 590, 0});
    const auto out = RunStep(*backend, pool, s, {2098, 0, 590, 0}, {2, 5, 10, 1});
    if (threads == 1) {
      first = out;
      std::vector<double> exact;
      for (const auto& [b, t] : {std::pair{0u, 2098u}, {0u, 2099u}, {1u, 0u}}) {
        const auto row = ExactRow(s, b, t, 1.0f / std::sqrt(32.0f));
        exact.insert(exact.end(), row.begin(), row.end());
      }
      EXPECT_LE(RelativeError({out.data(), exact.size()}, exact), 1e-6);
    }
    EXPECT_EQ(std::memcmp(out.data(), first.data(), first.size() * 4), 0) << threads;
  }
}

// Compares with unquantized values, which measures the error of int8 and fp8 pages alone.
TEST(AttentionErrorBoundTest, QuantizedPagesLoseAtMostTheirElementError) {
  for (const auto& [dtype, bound] : {std::pair{DType::kI8, 0.012}, {DType::kF8E4M3, 0.04}}) {
    Sequences s({dtype, 8, 2, 64, 16, 1}, {300}, 60);
    const TestBackend backend(2);
    TestPool pool = MakePool(s, 61);
    const auto out = RunStep(*backend, pool, s, {0}, {300});
    s.stored_k = s.k;
    s.stored_v = s.v;
    std::vector<double> exact;
    for (std::uint32_t t = 0; t < 300; ++t) {
      const auto row = ExactRow(s, 0, t, 0.125f);
      exact.insert(exact.end(), row.begin(), row.end());
    }
    const double error = RelativeError(out, exact);
    EXPECT_LE(error, bound) << DTypeName(dtype);
    EXPECT_GE(error, bound / 4) << DTypeName(dtype);
  }
}

TEST(AttentionErrorTest, NamesWhatIsWrong) {
  const TestBackend backend(1);
  TestPool pool({DType::kF32, 1, 2, 16, 16}, {0}, {4}, 34);
  const AnyKvView keys = pool.keys();
  const AnyKvView values = pool.values();
  std::vector<float> q(1024), out(1024);
  AttentionParams params{.keys = &keys,
                         .values = &values,
                         .q = q.data(),
                         .out = out.data(),
                         .row_offsets = pool.row_offsets(),
                         .q_stride = 48,
                         .out_stride = 48,
                         .batch_size = 1,
                         .num_heads = 3,
                         .scale = 1};
  EXPECT_THAT(PagedAttention(*backend, params).message(), testing::HasSubstr("3 query heads"));
  params.num_heads = 4;
  EXPECT_THAT(PagedAttention(*backend, params).message(), testing::HasSubstr("48"));
  params.q_stride = params.out_stride = 64;
  params.batch_size = 2;
  EXPECT_THAT(PagedAttention(*backend, params).message(), testing::HasSubstr("2 sequences"));
  params.batch_size = 1;
  pool.SetStep({16 * 24}, {1});
  params.row_offsets = pool.row_offsets();
  EXPECT_THAT(PagedAttention(*backend, params).message(), testing::HasSubstr("385 tokens"));
}

}  // namespace
}  // namespace quire::kernels
