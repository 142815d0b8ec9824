// Fused stores of heads and MLA rows, and page copies, on the emulated GPU. Every byte of the pool
// is compared with an image that the test computes.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <numeric>
#include <random>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "cache_manager/views/kv_quantize.h"
#include "kernels/kv_store/latent_store.h"
#include "kernels/kv_store/page_copy.h"
#include "kernels/kv_store/qkv_store.h"
#include "kernels/linear/linear.h"
#include "kernels/linear/quantized_linear.h"
#include "kernels/norm/norm.h"
#include "tests/kernels/coded_matrix.h"
#include "tests/kernels/cuda_test_util.h"
#include "tests/kernels/kernel_test_util.h"

namespace quire::kernels {
namespace {

constexpr std::uint32_t kLookupStride = 24;

cache::KvGeometry Geometry(DType dtype, std::uint32_t heads, std::uint32_t head_size) {
  cache::KvGeometry geometry;
  geometry.num_blocks = 9;
  geometry.num_layers = 2;
  geometry.page_size = 16;
  geometry.num_heads = heads;
  geometry.head_size = head_size;
  geometry.dtype = dtype;
  if (dtype == DType::kI8 || dtype == DType::kF8E4M3) {
    geometry.scale_dtype = DType::kF32;
    geometry.granularity = head_size;
  }
  return geometry;
}

// A pool in device memory with a lookup table, and a host copy of its bytes. Page 0 is zero and all
// else poison.
class DevicePool {
 public:
  DevicePool(const EmulatedBackend& cuda, const cache::KvGeometry& geometry,
             const std::vector<std::uint32_t>& table)
      : geometry_(geometry),
        bytes_(Total(geometry.block_stride() * DTypeSize(geometry.dtype)), std::byte{0xff}),
        scales_(geometry.quantized() ? Total(geometry.scale_block_stride() * 4) : 256,
                std::byte{0xff}),
        device_bytes_(cuda, bytes_.size()),
        device_scales_(cuda, scales_.size()),
        table_(cuda, table),
        lengths_(cuda, std::vector<std::uint32_t>(table.size() / kLookupStride, 0)) {
    std::memset(bytes_.data(), 0, bytes_.size() / geometry.num_blocks);
    if (geometry.quantized()) std::memset(scales_.data(), 0, scales_.size() / geometry.num_blocks);
    Upload();
    const cache::KvStepInputs inputs{table_.data(),
                                     lengths_.data(),
                                     kLookupStride,
                                     static_cast<std::uint32_t>(table.size() / kLookupStride),
                                     64,
                                     64,
                                     64};
    auto made = MakeKvCollection(geometry, device_bytes_.data(), inputs,
                                 geometry.quantized() ? device_scales_.data() : nullptr);
    EXPECT_TRUE(made.ok()) << made.status();
    collection_.emplace(*std::move(made));
  }

  const AnyKvCollection& collection() const { return *collection_; }
  std::vector<std::byte>& bytes() { return bytes_; }
  std::vector<std::byte>& scales() { return scales_; }
  void Upload() {
    device_bytes_.Put(bytes_);
    device_scales_.Put(scales_);
  }
  std::vector<std::byte> DeviceBytes() const { return device_bytes_.Get(); }
  std::vector<std::byte> DeviceScales() const { return device_scales_.Get(); }
  void ExpectDeviceIsAsHere() const {
    EXPECT_EQ(DeviceBytes(), bytes_);
    EXPECT_EQ(DeviceScales(), scales_);
  }
  // Returns element (page, kv, layer, token, head, 0), and its group's scale.
  std::byte* Head(std::uint32_t page, std::uint32_t kv, std::uint32_t layer, std::uint32_t token,
                  std::uint32_t head) {
    return bytes_.data() + (Row(page, kv, layer, token) * geometry_.num_heads + head) *
                               geometry_.head_size * DTypeSize(geometry_.dtype);
  }
  float* Scale(std::uint32_t page, std::uint32_t kv, std::uint32_t layer, std::uint32_t token,
               std::uint32_t head) {
    return reinterpret_cast<float*>(scales_.data()) +
           Row(page, kv, layer, token) * geometry_.num_heads + head;
  }

 private:
  std::size_t Total(std::int64_t page_bytes) const {
    return static_cast<std::size_t>(page_bytes * geometry_.num_blocks);
  }
  std::int64_t Row(std::uint32_t page, std::uint32_t kv, std::uint32_t layer,
                   std::uint32_t token) const {
    return ((std::int64_t{page} * 2 + kv) * geometry_.num_layers + layer) * geometry_.page_size +
           token;
  }

  cache::KvGeometry geometry_;
  std::vector<std::byte> bytes_;
  std::vector<std::byte> scales_;
  DeviceArray<std::byte> device_bytes_;
  DeviceArray<std::byte> device_scales_;
  DeviceArray<std::uint32_t> table_;
  DeviceArray<std::uint32_t> lengths_;
  std::optional<AnyKvCollection> collection_;
};

struct QkvCase {
  DType dtype;  // type of the pages; activations are f32 for f32 pages and bf16 for all others
  std::uint32_t heads;
  std::uint32_t kv_heads;
  std::uint32_t head_size;
  std::uint32_t rotary_size;
  std::uint32_t rotary_first;
  RopeStyle style;
  bool norm = false;  // of heads of q and k
  QueryScale q_scale = {};
  bool queries_only = false;
};

class QkvStoreCudaTest : public testing::TestWithParam<QkvCase> {};

INSTANTIATE_TEST_SUITE_P(
    Shapes, QkvStoreCudaTest,
    testing::Values(QkvCase{DType::kF32, 2, 1, 16, 16, 0, RopeStyle::kHalf},
                    QkvCase{DType::kF32, 3, 3, 20, 10, 4, RopeStyle::kInterleaved},
                    QkvCase{DType::kBF16, 8, 2, 128, 128, 0, RopeStyle::kHalf},
                    QkvCase{DType::kBF16, 4, 4, 256, 256, 0, RopeStyle::kHalf},
                    QkvCase{DType::kBF16, 2, 1, 64, 32, 32, RopeStyle::kInterleaved},
                    QkvCase{DType::kBF16, 2, 2, 80, 0, 0, RopeStyle::kHalf},
                    QkvCase{DType::kBF16, 2, 1, 96, 46, 0, RopeStyle::kHalf},
                    QkvCase{DType::kI8, 4, 2, 128, 128, 0, RopeStyle::kHalf},
                    QkvCase{DType::kI8, 1, 3, 64, 64, 0, RopeStyle::kInterleaved},
                    QkvCase{DType::kF8E4M3, 4, 2, 128, 128, 0, RopeStyle::kHalf},
                    QkvCase{DType::kF8E4M3, 2, 2, 256, 128, 64, RopeStyle::kHalf},
                    QkvCase{DType::kF32, 3, 1, 20, 20, 0, RopeStyle::kInterleaved, true},
                    QkvCase{DType::kBF16, 8, 2, 128, 128, 0, RopeStyle::kHalf, true},
                    QkvCase{DType::kBF16, 2, 1, 256, 0, 0, RopeStyle::kHalf, true},
                    QkvCase{DType::kI8, 2, 2, 64, 32, 32, RopeStyle::kHalf, true},
                    QkvCase{DType::kF32, 2, 1, 32, 0, 0, RopeStyle::kHalf, false, {0.3f, 4, 1}},
                    QkvCase{DType::kBF16, 3, 1, 64, 64, 0, RopeStyle::kHalf, true, {0.1f, 3, 0}},
                    QkvCase{DType::kF32, 3, 1, 16, 8, 0, RopeStyle::kHalf, true, {}, true},
                    QkvCase{DType::kBF16, 4, 2, 512, 512, 0, RopeStyle::kHalf, true, {}, true},
                    QkvCase{DType::kBF16, 2, 1, 512, 512, 0, RopeStyle::kHalf, true},
                    QkvCase{DType::kF8E4M3, 1, 2, 384, 384, 0, RopeStyle::kInterleaved}));

// Returns column d of a head after rope, with products rounded one by one. The definition of a pair
// determines the partner of d.
float Rotate(const QkvCase& of, const std::vector<float>& head, const float* cosines,
             const float* sines, std::uint32_t d) {
  const std::uint32_t pairs = of.rotary_size / 2;
  for (std::uint32_t i = 0; i < pairs; ++i) {
    const bool half = of.style == RopeStyle::kHalf;
    const std::uint32_t a = of.rotary_first + (half ? i : 2 * i);
    const std::uint32_t b = half ? a + pairs : a + 1;
    const float x0 = head[a], x1 = head[b];
    if (d == a) return x0 * cosines[i] - x1 * sines[i];
    if (d == b) return x1 * cosines[i] + x0 * sines[i];
  }
  return head[d];
}

std::vector<float> RotateHead(const QkvCase& of, const std::vector<float>& head,
                              const float* cosines, const float* sines) {
  std::vector<float> out;
  for (std::uint32_t d = 0; d < of.head_size; ++d) {
    out.push_back(Rotate(of, head, cosines, sines, d));
  }
  return out;
}

template <typename E>
void PutHead(const std::vector<float>& x, std::byte* to, float* scale) {
  std::vector<E> out(x.size());
  if constexpr (kQuantizedKv<E>) {
    *scale = cache::QuantizeGroup(x.data(), static_cast<std::uint32_t>(x.size()), out.data()).scale;
  } else {
    std::transform(x.begin(), x.end(), out.begin(), [](float v) { return FromFloat<E>(v); });
  }
  std::memcpy(to, out.data(), out.size() * sizeof(E));
}

// The inputs of a step. Sequence 0 writes tokens 14..18 over two pages, sequence 1 token 3, and
// sequence 2 a token without a page. Rows 1 and 6 are padding with meaningless positions.
const std::vector<std::int32_t> kTokenRows = {0, -1, 0, 1, 0, 0, -1, 2, 0};
const std::vector<std::int32_t> kPositions = {14, 77777, 15, 3, 16, 17, 0, 5, 18};

std::vector<std::uint32_t> StepTable() {
  std::vector<std::uint32_t> table(3 * kLookupStride, 0);
  table[0] = 7;
  table[1] = 2;
  table[kLookupStride] = 5;
  return table;
}

template <typename T>
struct QkvInputs {
  explicit QkvInputs(const QkvCase& of)
      : all_heads(of.heads + (of.queries_only ? 0 : 2 * of.kv_heads)),
        stride(all_heads * of.head_size + 5),
        pairs(std::max(of.rotary_size / 2, 1u)),
        cosines(kTokenRows.size() * pairs),
        sines(cosines.size()) {
    auto values = RandomFloats(kTokenRows.size() * stride, 3, 2.0f);
    // One head is zero, one contains an infinity, and one has tiny values.
    const std::uint32_t special = of.queries_only ? 0 : of.heads * of.head_size;
    std::fill_n(&values[2 * stride + special], of.head_size, 0.0f);
    values[4 * stride + special + 1] = std::numeric_limits<float>::infinity();
    for (std::uint32_t d = 0; d < of.head_size; ++d) {
      values[3 * stride + (all_heads - 1) * of.head_size + d] *= 1e-38f;
    }
    for (const float v : values) qkv.push_back(FromFloat<T>(v));
    for (std::size_t i = 0; i < cosines.size(); ++i) {
      cosines[i] = std::cos(static_cast<float>(i));
      sines[i] = std::sin(static_cast<float>(i));
    }
  }

  std::uint32_t all_heads;
  std::uint32_t stride;
  std::uint32_t pairs;
  std::vector<T> qkv;
  std::vector<float> cosines, sines;
};

constexpr float kNormEpsilon = 1e-6f;

// Returns qkv with its heads of q and k normalized by the op with one group per head.
template <typename T>
std::vector<T> NormHeads(const EmulatedBackend& cuda, const QkvCase& of, const QkvInputs<T>& in,
                         const DeviceArray<float>& q_norm, const DeviceArray<float>& k_norm) {
  const DeviceArray<T> qkv(cuda, in.qkv);
  const auto norm = [&](std::uint32_t first, std::uint32_t heads, const float* weight) {
    const FloatPtr at = FloatPtr(qkv.data()) + std::int64_t{first} * of.head_size;
    EXPECT_TRUE(RmsNorm(*cuda, {.x = at,
                                .weight = weight,
                                .y = at,
                                .x_stride = in.stride,
                                .y_stride = in.stride,
                                .num_rows = static_cast<std::uint32_t>(kTokenRows.size()),
                                .hidden = of.head_size,
                                .epsilon = kNormEpsilon,
                                .groups = heads})
                    .ok());
  };
  norm(0, of.heads, q_norm.data());
  if (!of.queries_only) norm(of.heads, of.kv_heads, k_norm.data());
  return qkv.Get();
}

// Writes a rotated query of a position, times its factor.
template <typename T>
void PutQuery(const QkvCase& of, const std::vector<float>& x, std::uint32_t position, T* to) {
  const float factor = of.q_scale.beta == 0 ? 1.0f : QueryFactor(of.q_scale, position);
  std::transform(x.begin(), x.end(), to, [&](float v) { return FromFloat<T>(v * factor); });
}

// T is the type of activations, E the type of page elements.
template <typename T, typename E>
void CheckQkvStore(const QkvCase& of) {
  const std::vector<std::uint32_t> table = StepTable();
  const EmulatedBackend cuda(of.head_size);
  DevicePool pool(cuda, Geometry(of.dtype, of.kv_heads, of.head_size), table);
  QkvInputs<T> in(of);
  auto& [all_heads, stride, pairs, qkv, cosines, sines] = in;
  DeviceArray<T> device_qkv(cuda, qkv);
  DeviceArray<float> device_cos(cuda, cosines), device_sin(cuda, sines);
  DeviceArray<std::int32_t> device_rows(cuda, kTokenRows), device_positions(cuda, kPositions);
  const DeviceArray<float> q_norm(cuda, RandomFloats(of.head_size, 8));
  const DeviceArray<float> k_norm(cuda, RandomFloats(of.head_size, 9));
  const std::vector<T> from = of.norm ? NormHeads(cuda, of, in, q_norm, k_norm) : qkv;
  const AnyKvView keys = KeyView(pool.collection(), 1);
  const AnyKvView view_values = ValueView(pool.collection(), 1);
  const absl::Status status =
      QkvStore(*cuda, {.keys = &keys,
                       .values = &view_values,
                       .qkv = device_qkv.data(),
                       .qkv_stride = stride,
                       .cosines = device_cos.data(),
                       .sines = device_sin.data(),
                       .row_offsets = nullptr,
                       .token_rows = device_rows.data(),
                       .positions = device_positions.data(),
                       .batch_size = 3,
                       .num_rows = static_cast<std::uint32_t>(kTokenRows.size()),
                       .num_heads = of.heads,
                       .rotary_size = of.rotary_size,
                       .rotary_first = of.rotary_first,
                       .style = of.style,
                       .q_norm = of.norm ? q_norm.data() : nullptr,
                       .k_norm = of.norm ? k_norm.data() : nullptr,
                       .norm_epsilon = kNormEpsilon,
                       .q_scale = of.q_scale,
                       .queries_only = of.queries_only});
  ASSERT_TRUE(status.ok()) << status;
  // Expected result: q heads in place, k and v in the image of the pool.
  for (std::uint32_t m = 0; m < kTokenRows.size(); ++m) {
    if (kTokenRows[m] < 0) continue;
    const auto t = static_cast<std::uint32_t>(kPositions[m]);
    const std::uint32_t page = table[kTokenRows[m] * kLookupStride + t / 16];
    for (std::uint32_t h = 0; h < all_heads; ++h) {
      T* const at = &qkv[m * stride + h * of.head_size];
      const bool is_value = h >= of.heads + of.kv_heads;
      const T* const head = &from[m * stride + h * of.head_size];
      std::vector<float> out;
      for (std::uint32_t d = 0; d < of.head_size; ++d) out.push_back(ToFloat(head[d]));
      if (!is_value) out = RotateHead(of, out, &cosines[m * pairs], &sines[m * pairs]);
      if (h < of.heads) {
        PutQuery(of, out, t, at);
      } else if (page != 0) {
        const std::uint32_t kv_head = h - of.heads - (is_value ? of.kv_heads : 0);
        PutHead<E>(out, pool.Head(page, is_value, 1, t % 16, kv_head),
                   kQuantizedKv<E> ? pool.Scale(page, is_value, 1, t % 16, kv_head) : nullptr);
      }
    }
  }
  EXPECT_EQ(std::memcmp(device_qkv.Get().data(), qkv.data(), qkv.size() * sizeof(T)), 0);
  pool.ExpectDeviceIsAsHere();
}

TEST_P(QkvStoreCudaTest, WritesExactlyItsBytes) {
  switch (GetParam().dtype) {
    case DType::kF32:
      return CheckQkvStore<float, float>(GetParam());
    case DType::kBF16:
      return CheckQkvStore<BF16, BF16>(GetParam());
    case DType::kI8:
      return CheckQkvStore<BF16, std::int8_t>(GetParam());
    default:
      return CheckQkvStore<BF16, F8E4M3>(GetParam());
  }
}

TEST(QkvStoreTest, QueryFactorGrowsWithTheLogarithmOfPeriods) {
  const QueryScale scale{.beta = 0.3f, .period = 32, .offset = 1};
  EXPECT_EQ(QueryFactor(scale, 0), 1.0f);
  EXPECT_EQ(QueryFactor(scale, 30), 1.0f);
  for (const std::uint32_t position : {31u, 63u, 1000u, 5000000u}) {
    const double want = 1 + double{scale.beta} * std::log1p((position + 1) / 32);
    EXPECT_NEAR(QueryFactor(scale, position), want, 2e-7 * want) << position;
  }
}

TEST(QkvStoreCudaRefusalTest, RejectsOtherCombinations) {
  const EmulatedBackend cuda;
  const std::vector<std::uint32_t> table(kLookupStride, 0);
  DeviceArray<float> qkv(cuda, 3 * 516);
  DeviceArray<BF16> rounded(cuda, 3 * 516);
  DeviceArray<std::int32_t> rows(cuda, 1);
  const auto refused = [&](DType dtype, std::uint32_t head_size, auto change) {
    DevicePool pool(cuda, Geometry(dtype, 1, head_size), table);
    const AnyKvView keys = KeyView(pool.collection(), 0);
    const AnyKvView values = ValueView(pool.collection(), 0);
    QkvStoreParams params{.keys = &keys,
                          .values = &values,
                          .qkv = qkv.data(),
                          .qkv_stride = 3 * head_size,
                          .cosines = nullptr,
                          .sines = nullptr,
                          .row_offsets = nullptr,
                          .token_rows = rows.data(),
                          .positions = rows.data(),
                          .batch_size = 1,
                          .num_rows = 1,
                          .num_heads = 1,
                          .rotary_size = 0};
    change(params);
    return absl::IsInvalidArgument(QkvStore(*cuda, params));
  };
  const auto as_is = [](QkvStoreParams&) {};
  EXPECT_TRUE(refused(DType::kBF16, 16, as_is));  // with f32 activations
  EXPECT_TRUE(refused(DType::kI8, 16, as_is));
  EXPECT_TRUE(refused(DType::kF16, 16, [&](auto& p) { p.qkv = rounded.data(); }));
  EXPECT_TRUE(refused(DType::kF32, 516, as_is));
  EXPECT_TRUE(refused(DType::kF32, 18, as_is));
  EXPECT_TRUE(refused(DType::kF32, 16, [](auto& p) { p.rotary_size = 3; }));
  EXPECT_TRUE(refused(DType::kF32, 16, [](auto& p) { p.rotary_size = 18; }));
  EXPECT_TRUE(refused(DType::kF32, 16, [](auto& p) { p.qkv_stride = 47; }));
  EXPECT_TRUE(refused(DType::kF32, 16, [](auto& p) { p.token_rows = nullptr; }));
  EXPECT_TRUE(refused(DType::kF32, 16, [](auto& p) { p.q_scale = {.beta = 1, .period = 0}; }));
}

// The first `count` rows of a step, from the input of attention to a separate pool.
struct QkvResult {
  std::vector<BF16> qkv;
  std::vector<std::byte> bytes;
  std::vector<std::byte> scales;
  std::uint64_t launches = 0;
};

class QkvProjection {
 public:
  QkvProjection(const EmulatedBackend& cuda, const QkvCase& of, std::uint32_t k,
                std::uint32_t more_features = 0, const QuantizedShape* codes = nullptr)
      : cuda_(cuda),
        case_(of),
        k_(k),
        in_(of),
        width_(in_.all_heads * of.head_size + more_features),
        x_(cuda, Rows(k)),
        bias_(cuda, RandomFloats(width_, 5)),
        cosines_(cuda, in_.cosines),
        sines_(cuda, in_.sines),
        token_rows_(cuda, kTokenRows),
        positions_(cuda, kPositions),
        q_norm_(cuda, RandomFloats(of.head_size, 8)),
        k_norm_(cuda, RandomFloats(of.head_size, 9)) {
    if (codes != nullptr) {
      matrix_ = *MakeQuantized(*codes).Pack(*cuda);
      return;
    }
    const auto values = Encode(RandomFloats(std::size_t{width_} * k, 6, 0.2f), DType::kBF16);
    const WeightRows source{values.data(), width_};
    matrix_ =
        *PackLinearWeights(*cuda, {&source, 1}, DType::kBF16, k, {.activations = DType::kBF16});
  }

  // Returns the status of the op, and its output in `result`.
  absl::Status Run(std::uint32_t count, bool at_once, QkvResult* result) const {
    DevicePool pool(cuda_, Geometry(case_.dtype, case_.kv_heads, case_.head_size), StepTable());
    const DeviceArray<BF16> qkv(cuda_, std::size_t{count} * in_.stride);
    const AnyKvView keys = KeyView(pool.collection(), 1);
    const AnyKvView values = ValueView(pool.collection(), 1);
    const QkvStoreParams store{.keys = &keys,
                               .values = &values,
                               .qkv = qkv.data(),
                               .qkv_stride = in_.stride,
                               .cosines = cosines_.data(),
                               .sines = sines_.data(),
                               .row_offsets = nullptr,
                               .token_rows = token_rows_.data(),
                               .positions = positions_.data(),
                               .batch_size = 3,
                               .num_rows = count,
                               .num_heads = case_.heads,
                               .rotary_size = case_.rotary_size,
                               .rotary_first = case_.rotary_first,
                               .style = case_.style,
                               .q_norm = case_.norm ? q_norm_.data() : nullptr,
                               .k_norm = case_.norm ? k_norm_.data() : nullptr,
                               .norm_epsilon = kNormEpsilon};
    LinearParams product{.x = x_.data(),
                         .weight = &matrix_,
                         .bias = bias_.data(),
                         .y = store.qkv,
                         .x_stride = k_,
                         .y_stride = store.qkv_stride,
                         .num_rows = count};
    if (at_once) product.store = &store;
    const std::uint64_t before = cuda_emulator::LaunchCount();
    QUIRE_RETURN_IF_ERROR(Linear(*cuda_, product));
    if (!at_once) QUIRE_RETURN_IF_ERROR(QkvStore(*cuda_, store));
    cuda_.Wait();
    *result = {qkv.Get(), pool.DeviceBytes(), pool.DeviceScales(),
               cuda_emulator::LaunchCount() - before};
    return absl::OkStatus();
  }

 private:
  static std::vector<BF16> Rows(std::uint32_t k) {
    std::vector<BF16> rows;
    for (const float v : RandomFloats(kTokenRows.size() * k, 7)) rows.push_back(BF16::FromFloat(v));
    return rows;
  }

  const EmulatedBackend& cuda_;
  QkvCase case_;
  std::uint32_t k_;
  QkvInputs<BF16> in_;
  std::uint32_t width_;
  DeviceArray<BF16> x_;
  DeviceArray<float> bias_, cosines_, sines_;
  DeviceArray<std::int32_t> token_rows_, positions_;
  DeviceArray<float> q_norm_, k_norm_;
  PackedLinear matrix_;
};

// Compares a product fused with its store, in the given number of launches, with separate ops.
void ExpectFusedEqualsSeparate(const QkvProjection& projection, std::uint32_t rows,
                               std::uint64_t launches) {
  SCOPED_TRACE(rows);
  QkvResult got, want;
  ASSERT_TRUE(projection.Run(rows, /*at_once=*/true, &got).ok());
  ASSERT_TRUE(projection.Run(rows, /*at_once=*/false, &want).ok());
  EXPECT_EQ(got.launches, cuda_emulator::IsEmulated() ? launches : 0);
  EXPECT_EQ(std::memcmp(got.qkv.data(), want.qkv.data(), 2 * want.qkv.size()), 0);
  EXPECT_EQ(got.bytes, want.bytes);
  EXPECT_EQ(got.scales, want.scales);
}

// Pages of other types and heads wider than a tile take two launches, with K in one sub-range and
// in several.
TEST(QkvLinearCudaTest, OneLaunchEqualsTwoBitwise) {
  for (const std::uint64_t seed : {1u, 5u}) {
    const EmulatedBackend cuda(seed);
    for (const QkvCase& of : {QkvCase{DType::kBF16, 8, 2, 128, 128, 0, RopeStyle::kHalf},
                              QkvCase{DType::kBF16, 3, 1, 64, 32, 32, RopeStyle::kInterleaved},
                              QkvCase{DType::kBF16, 5, 2, 32, 32, 0, RopeStyle::kHalf, true},
                              QkvCase{DType::kBF16, 2, 1, 128, 0, 0, RopeStyle::kHalf, true},
                              QkvCase{DType::kBF16, 2, 1, 80, 80, 0, RopeStyle::kHalf},
                              QkvCase{DType::kI8, 2, 1, 128, 128, 0, RopeStyle::kHalf},
                              QkvCase{DType::kF8E4M3, 2, 1, 64, 64, 0, RopeStyle::kHalf}}) {
      for (const std::uint32_t k : {72u, 576u}) {
        SCOPED_TRACE(absl::StrCat(DTypeName(of.dtype), " heads of ", of.head_size, ", k ", k));
        const QkvProjection projection(cuda, of, k);
        const bool fits = of.dtype == DType::kBF16 && 128 % of.head_size == 0;
        for (const std::uint32_t rows : {1u, 5u, 8u, 9u}) {
          ExpectFusedEqualsSeparate(projection, rows, fits && rows <= 8 ? 1 : 2);
        }
      }
    }
  }
}

// Covers every format, and an act-order permutation, which takes a separate launch.
TEST(QkvLinearCudaTest, QuantizedWeightsTakeOneLaunch) {
  const EmulatedBackend cuda;
  const QkvCase of{DType::kBF16, 5, 2, 64, 64, 0, RopeStyle::kHalf, true};
  using enum WeightFormat;
  for (const QuantizedShape& codes :
       {QuantizedShape{.format = kInt8, .n = 576, .k = 584, .group = 584},
        QuantizedShape{.format = kInt8,
        .n = 576,
        .k = 64,
        .group = 32,
        .has_min = true,
        .has_zero_points = true},
        QuantizedShape{.format = kFp8E4M3, .n = 576, .k = 584, .group = 128},
        QuantizedShape{.format = kInt4, .n = 576, .k = 640, .group = 64},
        QuantizedShape{.format = kFp4E2M1, .n = 576, .k = 544, .group = 32},
        QuantizedShape{.format = kInt4, .n = 576, .k = 640, .group = 64, .has_act_order = true}}) {
    SCOPED_TRACE(absl::StrCat(WeightFormatName(codes.format), codes.has_act_order ? " order" : ""));
    const QkvProjection projection(cuda, of, codes.k, 0, &codes);
    for (const std::uint32_t rows : {1u, 8u, 9u}) {
      ExpectFusedEqualsSeparate(projection, rows,
                                (rows <= 8 ? 1 : 2) + (codes.has_act_order ? 1 : 0));
    }
  }
}

TEST(QkvLinearCudaTest, RejectsWhatQkvStoreRejects) {
  const EmulatedBackend cuda;
  const QkvProjection odd(cuda, {DType::kBF16, 2, 1, 64, 66, 0, RopeStyle::kHalf}, 64);
  QkvResult result;
  EXPECT_TRUE(absl::IsInvalidArgument(odd.Run(1, /*at_once=*/true, &result)));
  EXPECT_TRUE(absl::IsInvalidArgument(odd.Run(9, /*at_once=*/true, &result)));
}

TEST(QkvLinearCudaTest, RejectsAMatrixWithMoreFeaturesThanARow) {
  const EmulatedBackend cuda;
  const QkvProjection wide(cuda, {DType::kBF16, 2, 1, 64, 64, 0, RopeStyle::kHalf}, 64,
                           /*more_features=*/128);
  QkvResult result;
  EXPECT_TRUE(absl::IsInvalidArgument(wide.Run(1, /*at_once=*/true, &result)));
  EXPECT_TRUE(absl::IsInvalidArgument(wide.Run(9, /*at_once=*/true, &result)));
}

struct LatentCase {
  DType dtype;
  std::uint32_t heads;
  std::uint32_t rank;
  std::uint32_t nope;
  std::uint32_t rope;
  RopeStyle style;
  bool rotates = true;
};

class LatentStoreCudaTest : public testing::TestWithParam<LatentCase> {};

INSTANTIATE_TEST_SUITE_P(
    Shapes, LatentStoreCudaTest,
    testing::Values(LatentCase{DType::kF32, 2, 32, 32, 16, RopeStyle::kInterleaved},
                    LatentCase{DType::kF32, 17, 64, 20, 128, RopeStyle::kHalf},
                    LatentCase{DType::kBF16, 16, 512, 128, 64, RopeStyle::kInterleaved},
                    LatentCase{DType::kBF16, 4, 64, 16, 8, RopeStyle::kHalf},
                    LatentCase{DType::kBF16, 3, 64, 64, 32, RopeStyle::kInterleaved},
                    LatentCase{DType::kF32, 2, 32, 32, 16, RopeStyle::kHalf, false},
                    LatentCase{DType::kBF16, 3, 64, 64, 32, RopeStyle::kInterleaved, false},
                    LatentCase{DType::kI8, 2, 512, 128, 64, RopeStyle::kInterleaved},
                    LatentCase{DType::kF8E4M3, 2, 32, 32, 16, RopeStyle::kInterleaved}));

// Returns rows of `width` values without gaps.
template <typename T>
std::vector<T> RandomRows(std::uint32_t width, std::uint32_t seed) {
  std::vector<T> out;
  for (const float v : RandomFloats(kTokenRows.size() * width, seed, 2.0f)) {
    out.push_back(FromFloat<T>(v));
  }
  return out;
}

// Returns the last `rope` columns of the head at `from`, rotated.
template <typename T>
std::vector<float> TransposedHead(const LatentCase& of, const T* from, std::uint32_t size,
                                  const float* cosines, const float* sines) {
  const QkvCase head{of.dtype, 0, 0, size, of.rope, size - of.rope, of.style};
  std::vector<float> x(size), out(size);
  std::transform(from, from + size, x.begin(), [](T v) { return ToFloat(v); });
  for (std::uint32_t d = 0; d < size; ++d) out[d] = Rotate(head, x, cosines, sines, d);
  return out;
}

// The inputs of a step.
template <typename T>
struct LatentInputs {
  explicit LatentInputs(const LatentCase& of)
      : columns(of.rank + of.rope),
        query(of.nope + of.rope),
        pairs(of.rope / 2),
        heads(RandomRows<T>(of.heads * query, 4)),
        latents(RandomRows<T>(columns, 5)),
        queries(RandomRows<T>(of.heads * columns, 6)),
        cosines(kTokenRows.size() * pairs),
        sines(cosines.size()),
        table(3 * kLookupStride, 0) {
    table[0] = 7;
    table[1] = 2;
    table[kLookupStride] = 5;
    for (std::size_t i = 0; i < cosines.size(); ++i) {
      cosines[i] = of.rotates ? std::cos(static_cast<float>(i)) : 1.0f;
      sines[i] = of.rotates ? std::sin(static_cast<float>(i)) : 0.0f;
    }
  }

  std::uint32_t columns, query, pairs;
  std::vector<T> heads, latents, queries;
  std::vector<float> cosines, sines;
  std::vector<std::uint32_t> table;
};

// Expected result: the ends of the queries, and the rows in the V half of layer 1.
template <typename T, typename E>
void StoreLatentsOnHost(const LatentCase& of, LatentInputs<T>& in, DevicePool& pool) {
  for (std::size_t m = 0; m < kTokenRows.size(); ++m) {
    if (kTokenRows[m] < 0) continue;
    const float* const cosines = &in.cosines[m * in.pairs];
    const float* const sines = &in.sines[m * in.pairs];
    for (std::uint32_t h = 0; h < of.heads; ++h) {
      const std::size_t head = m * of.heads + h;
      const std::vector<float> turned =
          TransposedHead(of, &in.heads[head * in.query], in.query, cosines, sines);
      for (std::uint32_t i = 0; i < of.rope; ++i) {
        in.queries[head * in.columns + of.rank + i] = FromFloat<T>(turned[of.nope + i]);
      }
    }
    const auto t = static_cast<std::uint32_t>(kPositions[m]);
    const std::uint32_t page =
        in.table[static_cast<std::uint32_t>(kTokenRows[m]) * kLookupStride + t / 16];
    if (page == 0) continue;
    PutHead<E>(TransposedHead(of, &in.latents[m * in.columns], in.columns, cosines, sines),
               pool.Head(page, 1, 1, t % 16, 0),
               kQuantizedKv<E> ? pool.Scale(page, 1, 1, t % 16, 0) : nullptr);
  }
}

template <typename T, typename E>
void CheckLatentStore(const LatentCase& of) {
  const EmulatedBackend cuda(of.rank);
  LatentInputs<T> in(of);
  DevicePool pool(cuda, Geometry(of.dtype, 1, in.columns), in.table);
  DeviceArray<T> heads(cuda, in.heads), latents(cuda, in.latents), queries(cuda, in.queries);
  DeviceArray<float> cosines(cuda, in.cosines), sines(cuda, in.sines);
  DeviceArray<std::int32_t> rows(cuda, kTokenRows), positions(cuda, kPositions);
  // Layer 3 of the model is the V half of the pool's layer 1.
  const AnyKvView view = LatentView(pool.collection(), 3);
  const absl::Status status =
      LatentStore(*cuda, {.rows = &view,
                          .heads = heads.data(),
                          .latents = latents.data(),
                          .queries = queries.data(),
                          .cosines = of.rotates ? cosines.data() : nullptr,
                          .sines = of.rotates ? sines.data() : nullptr,
                          .row_offsets = nullptr,
                          .token_rows = rows.data(),
                          .positions = positions.data(),
                          .batch_size = 3,
                          .num_rows = static_cast<std::uint32_t>(kTokenRows.size()),
                          .num_heads = of.heads,
                          .nope_size = of.nope,
                          .rope_size = of.rope,
                          .style = of.style});
  ASSERT_TRUE(status.ok()) << status;
  StoreLatentsOnHost<T, E>(of, in, pool);
  const std::vector<T> got = queries.Get();
  EXPECT_EQ(std::memcmp(got.data(), in.queries.data(), got.size() * sizeof(T)), 0);
  pool.ExpectDeviceIsAsHere();
}

TEST_P(LatentStoreCudaTest, WritesExactlyItsBytes) {
  switch (GetParam().dtype) {
    case DType::kF32:
      return CheckLatentStore<float, float>(GetParam());
    case DType::kBF16:
      return CheckLatentStore<BF16, BF16>(GetParam());
    case DType::kI8:
      return CheckLatentStore<BF16, std::int8_t>(GetParam());
    default:
      return CheckLatentStore<BF16, F8E4M3>(GetParam());
  }
}

TEST(LatentStoreCudaRefusalTest, RejectsOtherShapesAndTypes) {
  const EmulatedBackend cuda;
  const std::vector<std::uint32_t> table(kLookupStride, 0);
  DeviceArray<float> values(cuda, 640);
  DeviceArray<BF16> rounded(cuda, 640);
  DeviceArray<std::int32_t> rows(cuda, 1);
  const auto refused = [&](DType dtype, std::uint32_t kv_heads, std::uint32_t columns,
                           auto change) {
    DevicePool pool(cuda, Geometry(dtype, kv_heads, columns), table);
    const AnyKvView view = LatentView(pool.collection(), 0);
    LatentStoreParams params{.rows = &view,
                             .heads = values.data(),
                             .latents = values.data(),
                             .queries = values.data(),
                             .cosines = values.data(),
                             .sines = values.data(),
                             .row_offsets = nullptr,
                             .token_rows = rows.data(),
                             .positions = rows.data(),
                             .batch_size = 1,
                             .num_rows = 1,
                             .num_heads = 1,
                             .nope_size = 8,
                             .rope_size = 8};
    change(params);
    return absl::IsInvalidArgument(LatentStore(*cuda, params));
  };
  const auto as_is = [](LatentStoreParams&) {};
  EXPECT_TRUE(refused(DType::kBF16, 1, 48, as_is));  // with f32 activations
  EXPECT_TRUE(refused(DType::kF16, 1, 48, [&](auto& p) {
    p.heads = p.latents = rounded.data();
    p.queries = rounded.data();
  }));
  EXPECT_TRUE(refused(DType::kF32, 2, 48, as_is));
  EXPECT_TRUE(refused(DType::kF32, 1, 580, as_is));
  EXPECT_TRUE(refused(DType::kF32, 1, 46, as_is));
  EXPECT_TRUE(refused(DType::kF32, 1, 8, as_is));
  EXPECT_TRUE(refused(DType::kF32, 1, 576, [](auto& p) { p.rope_size = 132; }));
  EXPECT_TRUE(refused(DType::kF32, 1, 48, [](auto& p) { p.rope_size = 7; }));
  EXPECT_TRUE(refused(DType::kF32, 1, 48, [](auto& p) { p.nope_size = 6; }));
  EXPECT_TRUE(refused(DType::kF32, 1, 48, [](auto& p) { p.positions = nullptr; }));
}

class PageCopyCudaTest : public testing::TestWithParam<DType> {};

INSTANTIATE_TEST_SUITE_P(Elements, PageCopyCudaTest,
                         testing::Values(DType::kF32, DType::kBF16, DType::kF16, DType::kI8,
                                         DType::kF8E4M3),
                         [](const auto& info) { return std::string(DTypeName(info.param)); });

// Copies the first rows of K and V of both layers in the image, with their scales.
void CopyOnHost(DevicePool& pool, const cache::KvGeometry& geometry, const PageCopyItem& item) {
  for (std::uint32_t kv = 0; kv < 2; ++kv) {
    for (std::uint32_t layer = 0; layer < 2; ++layer) {
      std::memmove(pool.Head(item.destination, kv, layer, 0, 0),
                   pool.Head(item.source, kv, layer, 0, 0),
                   static_cast<std::size_t>(item.num_rows * geometry.row_elements() *
                                            DTypeSize(geometry.dtype)));
      if (!geometry.quantized()) continue;
      std::memmove(pool.Scale(item.destination, kv, layer, 0, 0),
                   pool.Scale(item.source, kv, layer, 0, 0),
                   item.num_rows * geometry.num_heads * sizeof(float));
    }
  }
}

void FillRandom(DevicePool& pool, std::uint32_t num_blocks) {
  std::mt19937 rng(9);
  const auto fill = [&](std::vector<std::byte>& bytes) {
    const std::size_t page = bytes.size() / num_blocks;
    for (std::size_t i = page; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(rng());
  };
  fill(pool.bytes());
  fill(pool.scales());
  pool.Upload();
}

TEST_P(PageCopyCudaTest, CopiesListsInOrder) {
  // The head sizes give rows of whole 16-byte, 4-byte and single-byte units.
  for (const std::uint32_t head_size : {32u, 12u, 3u}) {
    SCOPED_TRACE(head_size);
    const EmulatedBackend cuda(head_size);
    const cache::KvGeometry geometry = Geometry(GetParam(), head_size == 3 ? 1 : 3, head_size);
    DevicePool pool(cuda, geometry, std::vector<std::uint32_t>(kLookupStride, 0));
    FillRandom(pool, geometry.num_blocks);
    // Covers chains, a swap through a third page, equal destinations, the null page, empty copies,
    // and a page copied to itself.
    std::vector<PageCopyItem> items = {{1, 2, 16}, {2, 3, 7},  {4, 5, 1}, {5, 6, 16}, {6, 4, 16},
                                       {7, 8, 3},  {3, 8, 16}, {0, 7, 2}, {1, 2, 0},  {3, 3, 16}};
    std::mt19937 rng(head_size);
    for (int i = 0; i < 30; ++i) {
      items.push_back({static_cast<std::uint32_t>(rng() % 9),
                       static_cast<std::uint32_t>(1 + rng() % 8),
                       static_cast<std::uint32_t>(rng() % 17)});
    }
    ASSERT_TRUE(CopyPages(*cuda, pool.collection(), items).ok());
    for (const PageCopyItem& item : items) CopyOnHost(pool, geometry, item);
    pool.ExpectDeviceIsAsHere();

    const std::vector<std::uint32_t> zeroed = {3, 8, 3};
    ASSERT_TRUE(ZeroPages(*cuda, pool.collection(), zeroed).ok());
    for (const std::uint32_t page : zeroed) CopyOnHost(pool, geometry, {0, page, 16});
    pool.ExpectDeviceIsAsHere();
    ASSERT_TRUE(ZeroPage(*cuda, pool.collection(), 1).ok());
    CopyOnHost(pool, geometry, {0, 1, 16});
    ASSERT_TRUE(CopyPage(*cuda, {&pool.collection(), 2, 1, 5}).ok());
    CopyOnHost(pool, geometry, {2, 1, 5});
    pool.ExpectDeviceIsAsHere();
  }
}

TEST_P(PageCopyCudaTest, CopiesManyPagesInOneLaunchAndRejectsBadOnes) {
  const EmulatedBackend cuda;
  cache::KvGeometry geometry = Geometry(GetParam(), 1, 16);
  geometry.num_blocks = 80;
  DevicePool pool(cuda, geometry, std::vector<std::uint32_t>(kLookupStride, 0));
  FillRandom(pool, geometry.num_blocks);
  std::vector<PageCopyItem> items;
  for (std::uint32_t i = 1; i < 36; ++i) items.push_back({i, i + 40, i % 17});
  const std::uint64_t before = cuda_emulator::LaunchCount();
  ASSERT_TRUE(CopyPages(*cuda, pool.collection(), items).ok());
  cuda.Wait();
  const std::uint64_t launches = geometry.quantized() ? 4 : 2;
  if (cuda_emulator::IsEmulated()) {
    EXPECT_EQ(cuda_emulator::LaunchCount() - before, launches);
  }
  for (const PageCopyItem& item : items) CopyOnHost(pool, geometry, item);
  for (const PageCopyItem& bad : {PageCopyItem{80, 1, 1}, PageCopyItem{1, 80, 1},
                                  PageCopyItem{1, 0, 1}, PageCopyItem{1, 2, 17}}) {
    const std::vector<PageCopyItem> list = {{1, 2, 16}, bad};
    EXPECT_TRUE(absl::IsInvalidArgument(CopyPages(*cuda, pool.collection(), list)));
  }
  const std::vector<std::uint32_t> bad_zero = {2, 0};
  EXPECT_TRUE(absl::IsInvalidArgument(ZeroPages(*cuda, pool.collection(), bad_zero)));
  ASSERT_TRUE(CopyPages(*cuda, pool.collection(), {}).ok());
  cuda.Wait();
  if (cuda_emulator::IsEmulated()) {
    EXPECT_EQ(cuda_emulator::LaunchCount() - before, launches);
  }
  pool.ExpectDeviceIsAsHere();
}

}  // namespace
}  // namespace quire::kernels
