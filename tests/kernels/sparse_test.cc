// Sparse attention: scores of index keys, the exact selection, and attention over selected keys.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/attention/attention.h"
#include "kernels/norm/layer_norm.h"
#include "kernels/sparse/index_score.h"
#include "kernels/sparse/select_topk.h"
#include "kernels/sparse/sparse_attention.h"
#include "tests/kernels/kernel_test_util.h"

namespace quire::kernels {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

TEST(LayerNormTest, EqualsItsFormulaInDouble) {
  const TestBackend backend(2);
  constexpr std::uint32_t kRows = 5, kColumns = 24;
  const auto x = RandomFloats(kRows * kColumns, 1, 3.0f);
  const auto weight = RandomFloats(kColumns, 2);
  const auto bias = RandomFloats(kColumns, 3);
  std::vector<float> y = x;
  ASSERT_TRUE(
      LayerNorm(*backend, {x.data(), weight.data(), bias.data(), y.data(), kRows, kColumns, 0.5f})
          .ok());
  for (std::uint32_t m = 0; m < kRows; ++m) {
    const float* const row = x.data() + m * kColumns;
    const double mean = std::accumulate(row, row + kColumns, 0.0) / kColumns;
    double variance = 0;
    for (std::uint32_t c = 0; c < kColumns; ++c) variance += (row[c] - mean) * (row[c] - mean);
    variance /= kColumns;
    for (std::uint32_t c = 0; c < kColumns; ++c) {
      const double want = (row[c] - mean) / std::sqrt(variance + 0.5) * weight[c] + bias[c];
      EXPECT_NEAR(y[m * kColumns + c], want, 2e-6) << m << " " << c;
    }
  }
  EXPECT_FALSE(LayerNorm(*backend, {x.data(), weight.data(), bias.data(), y.data(), 1, 0, 1}).ok());
}

// The keys of sequences in a pool, and the queries and weights of all their tokens.
struct IndexCase {
  std::uint32_t heads;
  std::uint32_t size;
  DType dtype;
};

class IndexScoreTest : public testing::TestWithParam<IndexCase> {
 protected:
  static constexpr std::uint32_t kLengths[] = {1, 70, 700};

  IndexScoreTest()
      : q_(RandomFloats(771 * GetParam().heads * GetParam().size, 1)),
        weights_(RandomFloats(771 * GetParam().heads, 2)) {}

  static TestPool MakePool(std::uint32_t seed) {
    const IndexCase c = GetParam();
    TestPool pool({.dtype = c.dtype, .heads = 1, .head_size = c.size}, {0, 0, 0}, {1, 70, 700},
                  seed);
    const auto keys = RandomFloats(771 * c.size, 3);
    std::size_t token = 0;
    for (std::uint32_t b = 0; b < 3; ++b) {
      for (std::uint32_t t = 0; t < kLengths[b]; ++t, ++token) {
        pool.Put(b, t, keys.data() + token * c.size, keys.data() + token * c.size);
      }
    }
    return pool;
  }

  // Returns the params for rows [begin, end) of the step of `pool`, which begins at token `first`
  // of the packed arrays.
  IndexScoreParams Params(const TestPool& pool, const AnyKvView& view, std::size_t first,
                          std::uint32_t begin, std::uint32_t end, float* scores) const {
    const IndexCase c = GetParam();
    return {.keys = &view,
            .q = q_.data() + first * c.heads * c.size,
            .weights = weights_.data() + first * c.heads,
            .scores = scores,
            .row_offsets = pool.row_offsets(),
            .score_stride = kStride,
            .batch_size = pool.batch_size(),
            .row_begin = begin,
            .row_end = end,
            .num_heads = c.heads,
            .scale = 0.25f};
  }

  static constexpr std::int64_t kStride = ScoreStride(700);
  const std::vector<float> q_;
  const std::vector<float> weights_;
};

TEST_P(IndexScoreTest, EqualsTheReferenceForAnyInstructionSetThreadsAndRows) {
  TestPool pool = MakePool(7);
  const AnyKvView view = pool.keys();
  std::vector<float> want(771 * kStride, kNan);
  internal::IndexScoreCpu(Params(pool, view, 0, 0, 771, want.data()));
  for (const std::string& isa : AvailableIsas()) {
    const ScopedIsa scoped(isa);
    const bool has_fma = isa != "sse4" && isa != "scalar";
    const TestBackend backend(isa == "scalar" ? 1 : 3);
    for (const std::uint32_t rows : {64u, 771u}) {
      std::vector<float> got(std::size_t{rows} * kStride, kNan);
      for (std::uint32_t begin = 0; begin < 771; begin += rows) {
        const std::uint32_t end = std::min(begin + rows, 771u);
        ASSERT_TRUE(IndexScore(*backend, Params(pool, view, 0, begin, end, got.data())).ok());
        for (std::uint32_t m = begin; m < end; ++m) {
          const std::uint32_t keys = m == 0 ? 1 : m < 71 ? m : m - 70;
          const float* const a = got.data() + (m - begin) * kStride;
          const float* const b = want.data() + m * kStride;
          if (has_fma) {
            ASSERT_EQ(std::memcmp(a, b, keys * sizeof(float)), 0) << isa << " row " << m;
          } else {
            ASSERT_LE(RelativeError({a, keys}, std::vector<double>(b, b + keys)), 1e-5)
                << isa << " row " << m;
          }
        }
      }
    }
  }
}

// A token that is scored in a later step gets the same bits, on pages in another order.
TEST_P(IndexScoreTest, BitsDoNotDependOnChunks) {
  const TestBackend backend(2);
  TestPool whole = MakePool(8);
  const AnyKvView all = whole.keys();
  std::vector<float> want(771 * kStride);
  ASSERT_TRUE(IndexScore(*backend, Params(whole, all, 0, 0, 771, want.data())).ok());
  TestPool pool = MakePool(9);
  pool.SetStep({1, 70, 650}, {0, 0, 50});
  const AnyKvView view = pool.keys();
  std::vector<float> got(50 * kStride);
  ASSERT_TRUE(IndexScore(*backend, Params(pool, view, 721, 0, 50, got.data())).ok());
  for (std::uint32_t i = 0; i < 50; ++i) {
    EXPECT_EQ(std::memcmp(got.data() + i * kStride, want.data() + (721 + i) * kStride,
                          (651 + i) * sizeof(float)),
              0);
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, IndexScoreTest,
                         testing::Values(IndexCase{16, 24, DType::kF32},
                                         IndexCase{14, 32, DType::kBF16},
                                         IndexCase{1, 20, DType::kBF16},
                                         IndexCase{3, 128, DType::kF32},
                                         IndexCase{64, 16, DType::kBF16}),
                         [](const auto& info) {
                           return absl::StrCat("h", info.param.heads, "_d", info.param.size, "_",
                                               DTypeName(info.param.dtype));
                         });

TEST(IndexScoreRulesTest, NanReachesTheScoresAndBadArgumentsAreRejected) {
  const TestBackend backend(1);
  TestPool pool({.head_size = 16}, {0}, {3}, 1);
  const auto keys = RandomFloats(3 * 16, 1);
  for (std::uint32_t t = 0; t < 3; ++t) pool.Put(0, t, keys.data() + t * 16, keys.data() + t * 16);
  const AnyKvView view = pool.keys();
  auto q = RandomFloats(3 * 16, 2);
  std::vector<float> weights(3, 1.0f);
  std::vector<float> scores(3 * 64);
  IndexScoreParams params{.keys = &view,
                          .q = q.data(),
                          .weights = weights.data(),
                          .scores = scores.data(),
                          .row_offsets = pool.row_offsets(),
                          .score_stride = 64,
                          .batch_size = 1,
                          .row_begin = 0,
                          .row_end = 3,
                          .num_heads = 1,
                          .scale = 1};
  q[16] = kNan;       // query of row 1
  weights[2] = kNan;  // weight of row 2
  ASSERT_TRUE(IndexScore(*backend, params).ok());
  EXPECT_TRUE(std::isfinite(scores[0]));
  EXPECT_TRUE(std::isnan(scores[64]) && std::isnan(scores[65]));
  EXPECT_TRUE(std::isnan(scores[128]) && std::isnan(scores[130]));
  params.score_stride = 0;
  EXPECT_EQ(IndexScore(*backend, params).code(), absl::StatusCode::kInvalidArgument);
  params.score_stride = 64;
  params.row_end = 4;
  EXPECT_EQ(IndexScore(*backend, params).code(), absl::StatusCode::kInvalidArgument);
  TestPool half({.dtype = DType::kF16, .head_size = 16}, {0}, {3}, 1);
  const AnyKvView other = half.keys();
  params.row_end = 3;
  params.keys = &other;
  EXPECT_EQ(IndexScore(*backend, params).code(), absl::StatusCode::kInvalidArgument);
}

// Rows of scores of one length, selected by the op and by sorting.
void ExpectSelection(const std::vector<std::vector<float>>& rows, std::uint32_t topk) {
  const auto stride = static_cast<std::int64_t>(rows[0].size());
  std::vector<float> scores;
  for (const auto& row : rows) scores.insert(scores.end(), row.begin(), row.end());
  const std::vector<std::int32_t> positions(rows.size(), static_cast<std::int32_t>(stride) - 1);
  const auto width = static_cast<std::uint32_t>(std::min<std::int64_t>(topk, stride)) + 2;
  std::vector<std::int32_t> got(rows.size() * width), want(rows.size() * width);
  SelectTopKParams params{.scores = scores.data(),
                          .positions = positions.data(),
                          .selected = got.data(),
                          .score_stride = stride,
                          .num_rows = static_cast<std::uint32_t>(rows.size()),
                          .topk = topk,
                          .max_selected = width};
  const TestBackend backend(3);
  ASSERT_TRUE(SelectTopK(*backend, params).ok());
  params.selected = want.data();
  internal::SelectTopKCpu(params, 0, static_cast<std::int64_t>(rows.size()));
  EXPECT_EQ(got, want) << "top " << topk << " of " << stride;
}

TEST(SelectTopKTest, EqualsASortForTiesZerosNanAndLongRows) {
  std::mt19937 random(1);
  for (const std::size_t count : {1u, 5u, 64u, 300u, 5000u, 131072u}) {
    const auto coarse = [&](int values) {
      std::vector<float> row(count);
      for (float& x : row) {
        x = static_cast<float>(static_cast<int>(random() % static_cast<unsigned>(values))) -
            static_cast<float>(values / 2);
        if (x == 0 && random() % 2 == 0) x = -0.0f;
      }
      return row;
    };
    auto strange = coarse(7);
    for (std::size_t i = 0; i < count; i += 3) strange[i] = i % 2 == 0 ? kNan : -kNan;
    strange[count / 2] = std::numeric_limits<float>::infinity();
    strange[count - 1] = -std::numeric_limits<float>::infinity();
    for (const std::uint32_t topk : {1u, 7u, 24u, 2048u}) {
      ExpectSelection({std::vector<float>(count, 1.5f), coarse(1), coarse(2), coarse(9), strange,
                       RandomFloats(count, 5), RandomFloats(count, 6, 1e-20f)},
                      topk);
    }
  }
}

// The expected keys are stated here, so that the reference is tested too.
TEST(SelectTopKTest, BreaksTiesByPositionAndListsKeysAscending) {
  const TestBackend backend(1);
  const float scores[] = {0.0f, -1, 2, -0.0f, 2, kNan, 0.0f, 3};
  const std::int32_t position = 7;
  std::vector<std::int32_t> got(6);
  SelectTopKParams params{.scores = scores,
                          .positions = &position,
                          .selected = got.data(),
                          .score_stride = 8,
                          .num_rows = 1,
                          .topk = 5,
                          .max_selected = 6};
  for (const bool is_reference : {false, true}) {
    const auto select = [&](std::uint32_t topk) {
      params.topk = topk;
      if (is_reference) {
        internal::SelectTopKCpu(params, 0, 1);
      } else {
        EXPECT_TRUE(SelectTopK(*backend, params).ok());
      }
      return got;
    };
    EXPECT_EQ(select(1), (std::vector<std::int32_t>{5, -1, -1, -1, -1, -1}));
    EXPECT_EQ(select(3), (std::vector<std::int32_t>{2, 5, 7, -1, -1, -1}));
    EXPECT_EQ(select(5), (std::vector<std::int32_t>{0, 2, 4, 5, 7, -1}));
    EXPECT_EQ(select(6), (std::vector<std::int32_t>{0, 2, 3, 4, 5, 7}));
  }
  params.topk = 7;
  EXPECT_EQ(SelectTopK(*backend, params).code(), absl::StatusCode::kInvalidArgument);
  params.topk = 0;
  EXPECT_EQ(SelectTopK(*backend, params).code(), absl::StatusCode::kInvalidArgument);
}

struct SparseCase {
  std::uint32_t heads;
  std::uint32_t columns;
  DType dtype;
  CpuActivations activations = CpuActivations::kF32;
};

// Sequences of MLA rows in shuffled pages of 16 tokens.
class SparseAttentionTest : public testing::TestWithParam<SparseCase> {
 protected:
  static constexpr std::uint32_t kLengths[] = {40, 700};
  static constexpr std::uint32_t kFresh[] = {40, 30};
  static constexpr std::uint32_t kRows = 70;

  SparseAttentionTest()
      : q_(RandomFloats(kRows * std::size_t{GetParam().heads} * GetParam().columns, 1)),
        rows_(RandomFloats(740 * std::size_t{GetParam().columns}, 2)) {}

  TestPool MakePool(std::uint32_t seed, const std::vector<bool>* kept = nullptr) const {
    const SparseCase c = GetParam();
    TestPool pool({.dtype = c.dtype, .heads = 1, .head_size = c.columns}, {0, 670}, {40, 30}, seed);
    std::size_t token = 0;
    for (std::uint32_t b = 0; b < 2; ++b) {
      for (std::uint32_t t = 0; t < kLengths[b]; ++t, ++token) {
        if (kept != nullptr && !(*kept)[token]) continue;
        pool.Put(b, t, rows_.data() + token * c.columns, rows_.data() + token * c.columns);
      }
    }
    return pool;
  }

  static std::uint32_t PositionOf(std::uint32_t m) { return m < 40 ? m : 670 + m - 40; }
  std::int64_t stride() const { return std::int64_t{GetParam().heads} * GetParam().columns; }

  std::vector<float> Dense(const TestPool& pool) const {
    const TestBackend backend(3, GetParam().activations);
    std::vector<float> out(q_.size());
    const AnyKvView view = pool.keys();
    EXPECT_TRUE(PagedAttention(*backend, {.keys = &view,
                                          .values = &view,
                                          .q = q_.data(),
                                          .out = out.data(),
                                          .row_offsets = pool.row_offsets(),
                                          .q_stride = stride(),
                                          .out_stride = stride(),
                                          .batch_size = 2,
                                          .num_heads = GetParam().heads,
                                          .scale = 0.2f})
                    .ok());
    return out;
  }

  // `selected` has `width` keys of each row and is not changed.
  std::vector<float> Sparse(const TestPool& pool, std::vector<std::int32_t> selected,
                            std::uint32_t width, int threads) const {
    const TestBackend backend(threads, GetParam().activations);
    std::vector<float> out(q_.size());
    std::vector<std::uint32_t> last_selected(kRows), offsets(kRows + 1);
    const AnyKvView view = pool.keys();
    EXPECT_TRUE(MapSelectedRows(*backend, {.rows = &view,
                                           .selected = selected.data(),
                                           .last_selected = last_selected.data(),
                                           .offsets = offsets.data(),
                                           .row_offsets = pool.row_offsets(),
                                           .batch_size = 2,
                                           .num_rows = kRows,
                                           .max_selected = width})
                    .ok());
    EXPECT_TRUE(SparseAttention(*backend, {.rows = &view,
                                           .q = q_.data(),
                                           .out = out.data(),
                                           .selected = selected.data(),
                                           .last_selected = last_selected.data(),
                                           .offsets = offsets.data(),
                                           .q_stride = stride(),
                                           .out_stride = stride(),
                                           .num_rows = kRows,
                                           .max_selected = width,
                                           .num_heads = GetParam().heads,
                                           .scale = 0.2f,
                                           .value_columns = 0})
                    .ok());
    return out;
  }

  const std::vector<float> q_;
  const std::vector<float> rows_;
};

TEST_P(SparseAttentionTest, ASelectionOfAllKeysGivesTheBitsOfDenseAttention) {
  std::vector<std::int32_t> selected(kRows * 700, -1);
  for (std::uint32_t m = 0; m < kRows; ++m) {
    std::iota(selected.begin() + m * 700, selected.begin() + m * 700 + PositionOf(m) + 1, 0);
  }
  for (const std::string& isa : AvailableIsas()) {
    if (isa == "scalar") continue;
    const ScopedIsa scoped(isa);
    if (!CheckCpuActivations(GetParam().activations).ok()) continue;
    const auto want = Dense(MakePool(3));
    ASSERT_TRUE(std::ranges::all_of(want, [](float x) { return std::isfinite(x); }));
    for (const int threads : {1, 3}) {
      const auto got = Sparse(MakePool(4), selected, 700, threads);
      EXPECT_EQ(std::memcmp(got.data(), want.data(), want.size() * sizeof(float)), 0) << isa;
    }
  }
}

// Cache rows that no query selects are NaN, and so are pages that no sequence has.
TEST_P(SparseAttentionTest, EqualsTheMaskedSoftmaxAndReadsNoOtherRow) {
  constexpr std::uint32_t kWidth = 90;
  const SparseCase c = GetParam();
  std::mt19937 random(5);
  std::vector<std::int32_t> selected(kRows * kWidth, -1);
  std::vector<bool> kept(740, false);
  for (std::uint32_t m = 0; m < kRows; ++m) {
    std::vector<std::int32_t> keys(PositionOf(m) + 1);
    std::iota(keys.begin(), keys.end(), 0);
    // Rows of the second sequence never select keys 100 to 399.
    std::erase_if(keys, [](std::int32_t key) { return key >= 100 && key < 400; });
    std::shuffle(keys.begin(), keys.end(), random);
    keys.resize(std::min<std::size_t>(keys.size(), 1 + random() % kWidth));
    std::sort(keys.begin(), keys.end());
    std::copy(keys.begin(), keys.end(), selected.begin() + m * kWidth);
    for (const std::int32_t key : keys)
      kept[static_cast<std::size_t>(key) + (m < 40 ? 0 : 40)] = true;
  }
  const auto got = Sparse(MakePool(6, &kept), selected, kWidth, 2);
  const auto stored = AsStored(rows_, c.dtype, c.columns);
  std::vector<double> want;
  for (std::uint32_t m = 0; m < kRows; ++m) {
    const std::size_t first = m < 40 ? 0 : 40;
    for (std::uint32_t h = 0; h < c.heads; ++h) {
      const float* const q = q_.data() + static_cast<std::int64_t>(m) * stride() + h * c.columns;
      double sum = 0;
      std::vector<double> total(c.columns, 0.0);
      for (std::uint32_t k = 0; k < kWidth && selected[m * kWidth + k] >= 0; ++k) {
        const auto key = static_cast<std::size_t>(selected[m * kWidth + k]) + first;
        const float* const row = stored.data() + key * c.columns;
        const double weight = std::exp(0.2 * std::inner_product(q, q + c.columns, row, 0.0));
        sum += weight;
        for (std::uint32_t d = 0; d < c.columns; ++d) total[d] += weight * row[d];
      }
      for (const double value : total) want.push_back(value / sum);
    }
  }
  EXPECT_LE(RelativeError(got, want), c.activations == CpuActivations::kBF16 ? 2e-2 : 2e-6);
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, SparseAttentionTest,
    testing::Values(SparseCase{2, 48, DType::kF32}, SparseCase{2, 56, DType::kBF16},
                    SparseCase{20, 64, DType::kBF16}, SparseCase{4, 64, DType::kI8},
                    SparseCase{20, 48, DType::kF8E4M3}, SparseCase{3, 48, DType::kF16},
                    SparseCase{20, 64, DType::kBF16, CpuActivations::kBF16},
                    SparseCase{2, 40, DType::kBF16, CpuActivations::kBF16}),
    [](const auto& info) {
      const SparseCase& c = info.param;
      return absl::StrCat(DTypeName(c.dtype), "_h", c.heads, "_d", c.columns,
                          c.activations == CpuActivations::kBF16 ? "_rounded" : "");
    });

}  // namespace
}  // namespace quire::kernels
