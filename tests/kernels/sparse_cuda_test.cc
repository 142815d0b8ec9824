// Sparse attention on the emulated GPU: store, scores, selection and gather attention, compared
// with the CPU forms and with double precision. Pages are shuffled, and all other memory is NaN.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>
#include <span>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "kernels/sparse/index_score.h"
#include "kernels/sparse/index_store.h"
#include "kernels/sparse/select_topk.h"
#include "kernels/sparse/sparse_attention.h"
#include "tests/cuda_emulator/emulator.h"
#include "tests/kernels/attention_cuda_fixture.h"
#include "tests/kernels/kernel_test_util.h"

namespace quire::kernels {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// A copy of a pool, its lookup table and its lengths in device memory.
class DevicePages {
 public:
  DevicePages(const AttentionBackend& cuda, TestPool& pool)
      : cuda_(cuda),
        host_blocks_(pool.bytes().data()),
        host_scales_(pool.scale_bytes().data()),
        bytes_(cuda, {pool.bytes().begin(), pool.bytes().end()}),
        scales_(cuda, {pool.scale_bytes().begin(), pool.scale_bytes().end()}),
        table_(cuda, TableOf(pool)),
        lengths_(cuda, LengthsOf(pool)) {}

  // Returns the view of the device memory that corresponds to a view of the pool.
  AnyKvView View(AnyKvView view) const {
    std::visit(
        [&](auto& v) {
          const auto* const blocks = reinterpret_cast<const std::byte*>(v.blocks);
          v.blocks = reinterpret_cast<decltype(v.blocks)>(bytes_.data() + (blocks - host_blocks_));
          v.lookup_table = table_.data();
          v.cache_lengths = lengths_.data();
          if constexpr (std::decay_t<decltype(v)>::kQuantized) {
            const auto* const scales = reinterpret_cast<const std::byte*>(v.scales);
            v.scales =
                reinterpret_cast<decltype(v.scales)>(scales_.data() + (scales - host_scales_));
          }
        },
        view);
    return view;
  }
  std::vector<std::byte> Read(std::size_t count) const {
    std::vector<std::byte> bytes(count);
    bytes_.Read(cuda_, &bytes);
    return bytes;
  }

 private:
  static std::vector<std::uint32_t> TableOf(const TestPool& pool) {
    return std::visit(
        [](const auto& v) {
          return std::vector<std::uint32_t>(
              v.lookup_table, v.lookup_table + std::size_t{v.batch_size} * v.lookup_stride);
        },
        pool.keys());
  }
  static std::vector<std::uint32_t> LengthsOf(const TestPool& pool) {
    return std::visit(
        [](const auto& v) {
          return std::vector<std::uint32_t>(v.cache_lengths, v.cache_lengths + v.batch_size);
        },
        pool.keys());
  }

  const AttentionBackend& cuda_;
  const std::byte* const host_blocks_;
  const std::byte* const host_scales_;
  AttentionArray<std::byte> bytes_;
  AttentionArray<std::byte> scales_;
  AttentionArray<std::uint32_t> table_;
  AttentionArray<std::uint32_t> lengths_;
};

// Batch rows and positions of the rows of a step, then `padding` rows without a sequence.
struct StepPlaces {
  StepPlaces(const TestPool& pool, std::uint32_t padding) {
    for (std::uint32_t b = 0; b < pool.batch_size(); ++b) {
      const std::uint32_t cached =
          std::visit([&](const auto& v) { return v.cache_length(b); }, pool.keys());
      for (std::uint32_t m = pool.row_offsets()[b]; m < pool.row_offsets()[b + 1]; ++m) {
        rows.push_back(static_cast<std::int32_t>(b));
        positions.push_back(static_cast<std::int32_t>(cached + m - pool.row_offsets()[b]));
      }
    }
    rows.resize(rows.size() + padding, -1);
    positions.resize(rows.size(), 0);
    offsets.assign(pool.row_offsets(), pool.row_offsets() + pool.batch_size() + 1);
  }
  std::uint32_t count() const { return static_cast<std::uint32_t>(rows.size()); }

  std::vector<std::int32_t> rows;
  std::vector<std::int32_t> positions;
  std::vector<std::uint32_t> offsets;
};

struct StoreCase {
  std::uint32_t heads;
  std::uint32_t size;
  std::uint32_t rope_size;
  RopeStyle style;
  DType dtype;
};

// Inputs of a store, as vectors or as device arrays.
template <template <typename> typename Array>
struct StoreInputs {
  Array<float> queries, keys, weight, bias, cosines, sines;

  // The arrays may be const, although the op writes to some of them.
  IndexStoreParams Params(const StoreCase& c, const AnyKvView& view, std::uint32_t rows) const {
    return {.rows = &view,
            .queries = const_cast<float*>(queries.data()),
            .keys = const_cast<float*>(keys.data()),
            .norm_weight = weight.data(),
            .norm_bias = bias.data(),
            .cosines = cosines.data(),
            .sines = sines.data(),
            .row_offsets = nullptr,
            .token_rows = nullptr,
            .positions = nullptr,
            .batch_size = 3,
            .num_rows = rows,
            .num_heads = c.heads,
            .rope_size = c.rope_size,
            .style = c.style,
            .epsilon = 0.5f};
  }
};
template <typename T>
using HostArray = std::vector<T>;

StoreInputs<HostArray> RandomInputs(const StoreCase& c, std::uint32_t rows) {
  return {RandomFloats(std::size_t{rows} * c.heads * c.size, 1),
          RandomFloats(std::size_t{rows} * c.size, 2, 5.0f),
          RandomFloats(c.size, 3),
          RandomFloats(c.size, 4),
          RandomFloats(rows * c.rope_size / 2, 6),
          RandomFloats(rows * c.rope_size / 2, 7)};
}

// The f64 sums of the norm have another order on a GPU, so a key may be rounded to another value.
// Returns the number of such values. All others, and all NaN, must be equal.
template <typename T>
std::size_t CountRounded(const std::vector<std::byte>& got, std::span<const std::byte> want,
                         float limit) {
  std::size_t differing = 0;
  for (std::size_t i = 0; i < got.size(); i += sizeof(T)) {
    T x, y;
    std::memcpy(&x, &got[i], sizeof(T));
    std::memcpy(&y, &want[i], sizeof(T));
    const float a = ToFloat(x), b = ToFloat(y);
    if (std::isnan(a) && std::isnan(b)) continue;
    EXPECT_NEAR(a, b, std::abs(b) * limit + 1e-6f) << i;
    differing += a != b;
  }
  return differing;
}

class IndexStoreCudaTest : public testing::TestWithParam<StoreCase> {};

TEST_P(IndexStoreCudaTest, EqualsTheCpuAndWritesNothingElse) {
  const StoreCase c = GetParam();
  constexpr std::uint32_t kPadding = 2;
  const TestPool::Shape shape{.dtype = c.dtype, .layers = 2, .heads = 1, .head_size = c.size};
  TestPool pool(shape, {3, 0, 30}, {4, 1, 0}, 5);
  const AttentionBackend cuda;
  const DevicePages pages(cuda, pool);
  const StepPlaces places(pool, kPadding);
  const auto inputs = RandomInputs(c, places.count());
  const StoreInputs<AttentionArray> device{{cuda, inputs.queries}, {cuda, inputs.keys},
                                           {cuda, inputs.weight},  {cuda, inputs.bias},
                                           {cuda, inputs.cosines}, {cuda, inputs.sines}};
  const AttentionArray<std::int32_t> token_rows(cuda, places.rows),
      positions(cuda, places.positions);
  const AnyKvView view = pool.values(1);
  const AnyKvView device_view = pages.View(view);
  IndexStoreParams params = device.Params(c, device_view, places.count());
  params.token_rows = token_rows.data();
  params.positions = positions.data();
  const absl::Status stored = IndexStore(*cuda, params);
  ASSERT_TRUE(stored.ok()) << stored;
  std::vector<float> got(inputs.queries.size());
  device.queries.Read(cuda, &got);
  const std::vector<std::byte> got_pages = pages.Read(pool.bytes().size());

  const std::vector<float> before = inputs.queries;
  params = inputs.Params(c, view, places.count() - kPadding);
  params.row_offsets = pool.row_offsets();
  ASSERT_TRUE(IndexStore(*TestBackend(1), params).ok());
  EXPECT_EQ(got, inputs.queries);  // padding is unchanged
  EXPECT_NE(got, before);
  const std::size_t rounded = c.dtype == DType::kF32
                                  ? CountRounded<float>(got_pages, pool.bytes(), 1e-6f)
                                  : CountRounded<BF16>(got_pages, pool.bytes(), 8e-3f);
  EXPECT_LE(rounded, c.size / 4);
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, IndexStoreCudaTest,
    testing::Values(StoreCase{16, 24, 16, RopeStyle::kHalf, DType::kF32},
                    StoreCase{14, 32, 16, RopeStyle::kInterleaved, DType::kBF16},
                    StoreCase{3, 128, 64, RopeStyle::kHalf, DType::kBF16},
                    StoreCase{1, 128, 128, RopeStyle::kInterleaved, DType::kF32}),
    [](const auto& info) {
      return absl::StrCat("h", info.param.heads, "_d", info.param.size, "_r", info.param.rope_size,
                          "_", DTypeName(info.param.dtype));
    });

struct ScoreCase {
  std::uint32_t heads;
  std::uint32_t size;
  DType dtype;
};

class IndexScoreCudaTest : public testing::TestWithParam<ScoreCase> {
 protected:
  static constexpr std::uint32_t kPadding = 2;
  static constexpr std::int64_t kStride = ScoreStride(131);

  IndexScoreCudaTest()
      : pool_({.dtype = GetParam().dtype, .heads = 1, .head_size = GetParam().size},
              {0, 62, 0, 130}, {3, 4, 0, 1}, 7),
        places_(pool_, kPadding) {
    const ScoreCase c = GetParam();
    const auto keys = RandomFloats(std::size_t{200} * c.size, 3);
    const float* key = keys.data();
    for (const auto& [b, length] : {std::pair{0u, 3u}, {1u, 66u}, {3u, 131u}}) {
      for (std::uint32_t t = 0; t < length; ++t, key += c.size) pool_.Put(b, t, key, key);
    }
    q_ = RandomFloats(std::size_t{places_.count()} * c.heads * c.size, 1);
    weights_ = RandomFloats(std::size_t{places_.count()} * c.heads, 2);
    q_[2 * c.heads * c.size] = kNan;    // row 2
    weights_[4 * c.heads] = -kNan;      // row 4
    weights_[5 * c.heads] = -INFINITY;  // row 5
  }

  IndexScoreParams Params(const AnyKvView& view) const {
    return {.keys = &view,
            .q = q_.data(),
            .weights = weights_.data(),
            .scores = nullptr,
            .row_offsets = pool_.row_offsets(),
            .score_stride = kStride,
            .batch_size = 4,
            .row_begin = 0,
            .row_end = places_.count() - kPadding,
            .num_heads = GetParam().heads,
            .scale = 0.25f};
  }
  std::vector<float> Reference() const {
    std::vector<float> want(static_cast<std::size_t>(places_.count() * kStride), kNan);
    const AnyKvView view = pool_.keys();
    IndexScoreParams params = Params(view);
    params.scores = want.data();
    internal::IndexScoreCpu(params);
    return want;
  }

  // Compares the scores of row m, whose memory was -7.
  void ExpectRow(std::uint32_t m, const float* got, const float* want) const {
    const std::uint32_t seen =
        places_.rows[m] < 0 ? 0 : static_cast<std::uint32_t>(places_.positions[m]) + 1;
    for (std::uint32_t t = 0; t < seen; ++t) {
      ASSERT_TRUE(std::memcmp(got + t, want + t, sizeof(float)) == 0 ||
                  (std::isnan(got[t]) && std::isnan(want[t])))
          << "row " << m << " key " << t << ": " << got[t] << " instead of " << want[t];
    }
    EXPECT_TRUE(std::all_of(got + seen, got + kStride, [](float x) { return x == -7.0f; })) << m;
  }

  TestPool pool_;
  const StepPlaces places_;
  std::vector<float> q_;
  std::vector<float> weights_;
};

// Rows are scored in two blocks, of which the second has padding.
TEST_P(IndexScoreCudaTest, HasTheBitsOfTheReference) {
  const std::vector<float> want = Reference();
  for (const int num_sms : {1, 4}) {
    const AttentionBackend cuda(num_sms);
    const DevicePages pages(cuda, pool_);
    const AttentionArray<float> q(cuda, q_), weights(cuda, weights_);
    const AttentionArray<std::int32_t> token_rows(cuda, places_.rows),
        positions(cuda, places_.positions);
    const AnyKvView view = pages.View(pool_.keys());
    IndexScoreParams params = Params(view);
    params.q = q.data();
    params.weights = weights.data();
    params.row_offsets = nullptr;
    params.token_rows = token_rows.data();
    params.positions = positions.data();
    for (const auto& [begin, end] : {std::pair{0u, 5u}, {5u, places_.count()}}) {
      std::vector<float> got(static_cast<std::size_t>((end - begin) * kStride), -7.0f);
      const AttentionArray<float> scores(cuda, got);
      params.scores = scores.data();
      params.row_begin = begin;
      params.row_end = end;
      const absl::Status scored = IndexScore(*cuda, params);
      ASSERT_TRUE(scored.ok()) << scored;
      scores.Read(cuda, &got);
      for (std::uint32_t m = begin; m < end; ++m) {
        ExpectRow(m, got.data() + (m - begin) * kStride, want.data() + m * kStride);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, IndexScoreCudaTest,
                         testing::Values(ScoreCase{16, 24, DType::kF32},
                                         ScoreCase{14, 32, DType::kBF16},
                                         ScoreCase{1, 20, DType::kBF16},
                                         ScoreCase{64, 128, DType::kBF16}),
                         [](const auto& info) {
                           return absl::StrCat("h", info.param.heads, "_d", info.param.size, "_",
                                               DTypeName(info.param.dtype));
                         });

TEST(IndexScoreRulesCudaTest, RejectsShapesThatNoKernelHas) {
  const AttentionBackend cuda;
  const std::int32_t none = -1;
  for (const auto& [dtype, heads, size] : {std::tuple{DType::kF32, 65u, 16u},
                                           {DType::kF32, 1u, 18u},
                                           {DType::kF32, 1u, 132u},
                                           {DType::kF16, 1u, 16u}}) {
    TestPool pool({.dtype = dtype, .head_size = size}, {0}, {1}, 1);
    const AnyKvView view = pool.keys();
    const absl::Status status = IndexScore(*cuda, {.keys = &view,
                                                   .q = nullptr,
                                                   .weights = nullptr,
                                                   .scores = nullptr,
                                                   .row_offsets = nullptr,
                                                   .score_stride = 64,
                                                   .batch_size = 1,
                                                   .row_begin = 0,
                                                   .row_end = 1,
                                                   .num_heads = heads,
                                                   .scale = 1,
                                                   .token_rows = &none,
                                                   .positions = &none});
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  }
}

// Rows of scores, of which row i has lengths[i] keys, selected on the GPU and by sorting. A row of
// padding follows the first one.
void ExpectSelection(const std::vector<std::vector<float>>& rows, std::uint32_t topk) {
  const AttentionBackend cuda(2);
  std::size_t longest = 0;
  for (const auto& row : rows) longest = std::max(longest, row.size());
  const auto stride = static_cast<std::int64_t>(longest);
  std::vector<float> scores;
  std::vector<std::int32_t> token_rows, positions;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    scores.insert(scores.end(), rows[i].begin(), rows[i].end());
    scores.resize(scores.size() + longest - rows[i].size(), kNan);
    token_rows.push_back(static_cast<std::int32_t>(i));
    positions.push_back(static_cast<std::int32_t>(rows[i].size()) - 1);
    if (i > 0) continue;
    scores.resize(scores.size() + longest, kNan);
    token_rows.push_back(-1);
    positions.push_back(0);
  }
  const std::uint32_t width = std::min(topk, static_cast<std::uint32_t>(longest)) + 2;
  std::vector<std::int32_t> want(token_rows.size() * width, -9), got = want;
  SelectTopKParams params{.scores = scores.data(),
                          .positions = positions.data(),
                          .selected = want.data(),
                          .score_stride = stride,
                          .num_rows = static_cast<std::uint32_t>(token_rows.size()),
                          .topk = topk,
                          .max_selected = width};
  internal::SelectTopKCpu(params, 0, 1);
  internal::SelectTopKCpu(params, 2, params.num_rows);
  const AttentionArray<float> device_scores(cuda, scores);
  const AttentionArray<std::int32_t> device_positions(cuda, positions),
      device_rows(cuda, token_rows), selected(cuda, got);
  params.scores = device_scores.data();
  params.positions = device_positions.data();
  params.token_rows = device_rows.data();
  params.selected = selected.data();
  const absl::Status status = SelectTopK(*cuda, params);
  ASSERT_TRUE(status.ok()) << status;
  selected.Read(cuda, &got);
  EXPECT_EQ(got, want) << "top " << topk << " of at most " << longest;
}

// Returns small integers, of which zeros have random signs.
std::vector<float> Coarse(std::size_t count, unsigned values, std::mt19937& random) {
  std::vector<float> row(count);
  for (float& x : row) {
    x = static_cast<float>(static_cast<int>(random() % values) - static_cast<int>(values / 2));
    if (x == 0 && random() % 2 == 0) x = -0.0f;
  }
  return row;
}

TEST(SelectTopKCudaTest, EqualsASortForTiesZerosAndNan) {
  std::mt19937 random(1);
  for (const std::size_t count : {1u, 5u, 64u, 3000u}) {
    auto strange = Coarse(count, 7, random);
    for (std::size_t i = 0; i < count; i += 3) strange[i] = i % 2 == 0 ? kNan : -kNan;
    strange[count / 2] = INFINITY;
    strange[count - 1] = -INFINITY;
    for (const std::uint32_t topk : {1u, 24u, 2048u}) {
      ExpectSelection({std::vector<float>(count, 1.5f), Coarse(count, 1, random),
                       Coarse(count / 2 + 1, 2, random), Coarse(count, 9, random), strange,
                       RandomFloats(count, 5), RandomFloats(count, 6, 1e-20f)},
                      topk);
    }
  }
}

// The border lies in a run of equal scores that crosses rounds of the ordered scan.
TEST(SelectTopKCudaTest, TakesTheFirstKeysOfARunOfEquals) {
  std::vector<float> row(6000, 0.0f);
  for (std::size_t i = 0; i < row.size(); i += 7) row[i] = -1;
  row[5999] = row[17] = 2;
  for (const std::uint32_t topk : {2u, 3u, 2047u, 4000u, 5144u, 5999u}) {
    ExpectSelection({row}, topk);
  }
}

TEST(SelectTopKCudaTest, SelectsFromALongRow) {
  std::mt19937 random(2);
  ExpectSelection({RandomFloats(40000, 3), Coarse(40000, 50, random)}, 2048);
}

// Selected keys of the rows of a pool's step, mapped to rows of its pages. Rows of padding follow.
class DeviceKeys {
 public:
  DeviceKeys(const AttentionBackend& cuda, const TestPool& pool, std::uint32_t padding,
             std::vector<std::int32_t> selected, std::uint32_t width, const AnyKvView& view)
      : places_(pool, padding),
        width_(width),
        selected_(cuda, Padded(std::move(selected), std::size_t{places_.count()} * width)),
        token_rows_(cuda, places_.rows),
        row_offsets_(cuda, places_.offsets),
        last_selected_(cuda, std::vector<std::uint32_t>(places_.count(), ~0u)),
        offsets_(cuda, std::vector<std::uint32_t>(places_.count() + 1, ~0u)),
        live_(cuda, std::vector<std::uint32_t>(places_.count() + 1, ~0u)) {
    const absl::Status status = MapSelectedRows(*cuda, {.rows = &view,
                                                        .selected = selected_.data(),
                                                        .last_selected = last_selected_.data(),
                                                        .offsets = offsets_.data(),
                                                        .row_offsets = row_offsets_.data(),
                                                        .batch_size = pool.batch_size(),
                                                        .num_rows = places_.count(),
                                                        .max_selected = width,
                                                        .token_rows = token_rows_.data(),
                                                        .live_rows = live_.data()});
    EXPECT_TRUE(status.ok()) << status;
  }
  std::uint32_t count() const { return places_.count(); }

  absl::Status Attend(const AttentionBackend& cuda, const AnyKvView& view, ConstFloatPtr q,
                      FloatPtr out, std::uint32_t heads, std::uint32_t value_columns) const {
    const std::uint32_t columns = KvShapeOf(view).head_size;
    const auto plan = AttentionPlan::Create(*cuda, {.max_sequences = 4,
                                                    .max_step_tokens = 64,
                                                    .max_length = 1200,
                                                    .num_heads = heads,
                                                    .num_kv_heads = 1,
                                                    .head_size = columns});
    QUIRE_RETURN_IF_ERROR(plan.status());
    QUIRE_RETURN_IF_ERROR(SparseAttention(*cuda, {.rows = &view,
                                                  .q = q,
                                                  .out = out,
                                                  .selected = selected_.data(),
                                                  .last_selected = last_selected_.data(),
                                                  .offsets = offsets_.data(),
                                                  .q_stride = std::int64_t{heads} * columns,
                                                  .out_stride = std::int64_t{heads} * columns,
                                                  .num_rows = count(),
                                                  .max_selected = width_,
                                                  .num_heads = heads,
                                                  .scale = 0.2f,
                                                  .value_columns = value_columns,
                                                  .live_rows = live_.data(),
                                                  .plan = plan->get()}));
    return cuda.stream().Synchronize();  // before the plan is freed
  }

 private:
  static std::vector<std::int32_t> Padded(std::vector<std::int32_t> values, std::size_t count) {
    values.resize(count, -9);
    return values;
  }

  const StepPlaces places_;
  const std::uint32_t width_;
  AttentionArray<std::int32_t> selected_, token_rows_;
  AttentionArray<std::uint32_t> row_offsets_, last_selected_, offsets_, live_;
};

struct SparseCase {
  std::uint32_t heads;
  std::uint32_t rank;
  std::uint32_t rope;
  DType dtype;
  DType activations;
};

// Sequences of MLA rows in shuffled pages, and rows of padding.
class SparseAttentionCudaTest : public testing::TestWithParam<SparseCase> {
 protected:
  static constexpr std::uint32_t kRows = 11;
  static constexpr std::uint32_t kPadding = 3;
  static constexpr std::uint32_t kWidth = 90;

  std::uint32_t columns() const { return GetParam().rank + GetParam().rope; }
  std::int64_t stride() const { return std::int64_t{GetParam().heads} * columns(); }

  // Returns random keys for each row, and marks the tokens that some row selects.
  static std::vector<std::int32_t> RandomKeys(std::vector<bool>* kept);
  // Returns what Run approximates.
  std::vector<double> Exact(const std::vector<float>& q, const std::vector<float>& rows,
                            const std::vector<std::int32_t>& selected) const;
  // Returns the outputs of the rows of the pool's step, [heads, rank] each.
  std::vector<float> Run(const AttentionBackend& cuda, TestPool& pool, const std::vector<float>& q,
                         const std::vector<std::int32_t>& selected) const;
  // Writes the tokens of `rows` that `kept` names to a pool.
  void Fill(TestPool& pool, const std::vector<std::uint32_t>& lengths,
            const std::vector<float>& rows, const std::vector<bool>& kept) const {
    std::size_t token = 0;
    for (std::uint32_t b = 0; b < lengths.size(); ++b) {
      for (std::uint32_t t = 0; t < lengths[b]; ++t, ++token) {
        const float* const row = rows.data() + token * columns();
        if (kept[token]) pool.Put(b, t, row, row);
      }
    }
  }
};

std::vector<std::int32_t> SparseAttentionCudaTest::RandomKeys(std::vector<bool>* kept) {
  std::mt19937 random(5);
  std::vector<std::int32_t> selected(kRows * kWidth, -1);
  kept->assign(306, false);
  for (std::uint32_t m = 0; m < kRows; ++m) {
    std::vector<std::int32_t> keys(m < 6 ? m + 1 : 290 + m);
    std::iota(keys.begin(), keys.end(), 0);
    // Rows of the second sequence never select keys 100 to 199.
    std::erase_if(keys, [](std::int32_t key) { return key >= 100 && key < 200; });
    std::shuffle(keys.begin(), keys.end(), random);
    keys.resize(std::min<std::size_t>(keys.size(), m == 8 ? kWidth : 1 + random() % kWidth));
    std::sort(keys.begin(), keys.end());
    std::copy(keys.begin(), keys.end(), selected.begin() + m * kWidth);
    for (const std::int32_t key : keys) {
      (*kept)[static_cast<std::size_t>(key) + (m < 6 ? 0 : 6)] = true;
    }
  }
  return selected;
}

std::vector<double> SparseAttentionCudaTest::Exact(
    const std::vector<float>& q, const std::vector<float>& rows,
    const std::vector<std::int32_t>& selected) const {
  const SparseCase c = GetParam();
  const auto stored = AsStored(rows, c.dtype, columns());
  std::vector<double> want;
  for (std::uint32_t m = 0; m < kRows; ++m) {
    const std::size_t first = m < 6 ? 0 : 6;
    for (std::uint32_t h = 0; h < c.heads; ++h) {
      const float* const x = q.data() + static_cast<std::int64_t>(m) * stride() + h * columns();
      double sum = 0;
      std::vector<double> total(c.rank, 0.0);
      for (std::uint32_t k = 0; k < kWidth && selected[m * kWidth + k] >= 0; ++k) {
        const auto key = static_cast<std::size_t>(selected[m * kWidth + k]) + first;
        const float* const row = stored.data() + key * columns();
        const double weight = std::exp(0.2 * std::inner_product(x, x + columns(), row, 0.0));
        sum += weight;
        for (std::uint32_t d = 0; d < c.rank; ++d) total[d] += weight * row[d];
      }
      for (const double value : total) want.push_back(value / sum);
    }
  }
  return want;
}

template <typename T>
float ElementAt(const std::vector<std::byte>& bytes, std::size_t i) {
  T value;
  std::memcpy(&value, &bytes[i * sizeof(T)], sizeof(T));
  return ToFloat(value);
}

std::vector<float> SparseAttentionCudaTest::Run(const AttentionBackend& cuda, TestPool& pool,
                                                const std::vector<float>& q,
                                                const std::vector<std::int32_t>& selected) const {
  const SparseCase c = GetParam();
  const DevicePages pages(cuda, pool);
  const AnyKvView view = pages.View(pool.keys());
  const DeviceKeys keys(cuda, pool, kPadding, selected, kWidth, view);
  std::vector<float> padded = q;
  padded.resize(static_cast<std::size_t>(keys.count() * stride()), kNan);
  std::vector<std::byte> out = Encode(std::vector<float>(padded.size(), -7.0f), c.activations);
  const AttentionArray<std::byte> device_q(cuda, Encode(padded, c.activations)),
      device_out(cuda, out);
  const absl::Status status = keys.Attend(cuda, view, {device_q.data(), c.activations},
                                          {device_out.data(), c.activations}, c.heads, c.rank);
  EXPECT_TRUE(status.ok()) << status;
  device_out.Read(cuda, &out);
  std::vector<float> got;
  for (std::size_t i = 0; i < padded.size(); ++i) {
    const float y =
        c.activations == DType::kF32 ? ElementAt<float>(out, i) : ElementAt<BF16>(out, i);
    if (i >= q.size()) {
      EXPECT_EQ(y, -7.0f) << i;  // padding
    } else if (i % columns() < c.rank) {
      got.push_back(y);
    }
  }
  return got;
}

// Cache rows that no query selects are NaN, and so are pages that no sequence has.
TEST_P(SparseAttentionCudaTest, EqualsTheMaskedSoftmaxAndReadsNoOtherRow) {
  const SparseCase c = GetParam();
  const auto rows = RandomFloats(306 * std::size_t{columns()}, 2);
  const auto q =
      Rounded(RandomFloats(static_cast<std::size_t>(kRows * stride()), 1, 0.5f), c.activations);
  std::vector<bool> kept;
  const std::vector<std::int32_t> selected = RandomKeys(&kept);
  const TestPool::Shape shape{.dtype = c.dtype, .heads = 1, .head_size = columns()};
  TestPool pool(shape, {0, 0, 295}, {6, 0, 5}, 6);
  Fill(pool, {6, 0, 300}, rows, kept);
  const AttentionBackend cuda(2);
  const std::uint64_t before = cuda_emulator::LaunchCount("attention latent");
  const auto got = Run(cuda, pool, q, selected);
  EXPECT_LE(RelativeError(got, Exact(q, rows, selected)),
            c.activations == DType::kF32 ? 2e-6 : 6e-3);
  if (cuda_emulator::IsEmulated()) {
    const bool is_latent =
        c.activations == DType::kBF16 && c.dtype == DType::kBF16 && columns() > 128;
    EXPECT_EQ(cuda_emulator::LaunchCount("attention latent") - before, is_latent ? 1u : 0u);
  }
  // The last rows alone, in other pages and on a GPU of another size.
  TestPool alone(shape, {298}, {2}, 9);
  Fill(alone, {300}, {rows.begin() + 6 * columns(), rows.end()}, {kept.begin() + 6, kept.end()});
  const auto tail = Run(AttentionBackend(5, 3), alone, {q.end() - 2 * stride(), q.end()},
                        {selected.end() - 2 * kWidth, selected.end()});
  EXPECT_EQ(
      std::memcmp(tail.data(), got.data() + got.size() - tail.size(), tail.size() * sizeof(float)),
      0);
}

INSTANTIATE_TEST_SUITE_P(Shapes, SparseAttentionCudaTest,
                         testing::Values(SparseCase{2, 32, 16, DType::kF32, DType::kF32},
                                         SparseCase{3, 48, 8, DType::kBF16, DType::kBF16},
                                         SparseCase{40, 128, 16, DType::kBF16, DType::kBF16},
                                         SparseCase{4, 512, 64, DType::kBF16, DType::kBF16},
                                         SparseCase{3, 128, 32, DType::kF8E4M3, DType::kBF16},
                                         SparseCase{2, 32, 16, DType::kI8, DType::kBF16}),
                         [](const auto& info) {
                           const SparseCase& c = info.param;
                           return absl::StrCat(DTypeName(c.dtype), "_h", c.heads, "_d", c.rank, "_",
                                               c.rope);
                         });

// A selection of more than one span of the MLA kernel, in blocks of their own or not.
TEST(SparseAttentionSpansCudaTest, TheDivisionOfSpansDoesNotChangeBits) {
  constexpr std::uint32_t kColumns = 144, kHeads = 2, kKeys = 1100;
  TestPool pool({.dtype = DType::kBF16, .heads = 1, .head_size = kColumns}, {kKeys - 1}, {1}, 4);
  const auto rows = RandomFloats(kKeys * kColumns, 2);
  for (std::uint32_t t = 0; t < kKeys; ++t) {
    pool.Put(0, t, rows.data() + t * kColumns, rows.data() + t * kColumns);
  }
  std::vector<std::int32_t> selected(kKeys);
  std::iota(selected.begin(), selected.end(), 0);
  const std::vector<std::byte> q = Encode(RandomFloats(kHeads * kColumns, 1, 0.5f), DType::kBF16);
  std::vector<std::byte> first;
  for (const int num_sms : {8, 1}) {
    const AttentionBackend cuda(num_sms);
    const DevicePages pages(cuda, pool);
    const AnyKvView view = pages.View(pool.keys());
    const DeviceKeys keys(cuda, pool, /*padding=*/0, selected, kKeys, view);
    const AttentionArray<std::byte> device_q(cuda, q), out(cuda, q);
    const absl::Status status = keys.Attend(cuda, view, {device_q.data(), DType::kBF16},
                                            {out.data(), DType::kBF16}, kHeads, 128);
    ASSERT_TRUE(status.ok()) << status;
    std::vector<std::byte> got(q.size());
    out.Read(cuda, &got);
    EXPECT_NE(got, q);
    if (first.empty()) first = got;
    EXPECT_EQ(got, first);
  }
}

}  // namespace
}  // namespace quire::kernels
