#include "tests/kernels/kernel_test_util.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

#include "cache_manager/views/kv_quantize.h"

namespace quire::kernels {
namespace {

template <typename T>
void EncodeAs(std::span<const float> values, std::vector<std::byte>& bytes) {
  bytes.resize(values.size() * sizeof(T));
  for (std::size_t i = 0; i < values.size(); ++i) {
    const T element = FromFloat<T>(values[i]);
    std::memcpy(bytes.data() + i * sizeof(T), &element, sizeof(T));
  }
}

template <typename T>
std::vector<float> RoundAs(std::span<const float> values) {
  std::vector<float> rounded;
  for (const float x : values) rounded.push_back(ToFloat(FromFloat<T>(x)));
  return rounded;
}

}  // namespace

std::vector<float> RandomFloats(std::size_t count, std::uint32_t seed, float deviation) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal(0.0f, deviation);
  std::vector<float> values(count);
  for (float& x : values) x = normal(generator);
  return values;
}

std::vector<std::byte> Encode(std::span<const float> values, DType dtype) {
  std::vector<std::byte> bytes;
  if (dtype == DType::kF32) EncodeAs<float>(values, bytes);
  if (dtype == DType::kBF16) EncodeAs<BF16>(values, bytes);
  if (dtype == DType::kF16) EncodeAs<F16>(values, bytes);
  return bytes;
}

std::vector<float> Rounded(std::span<const float> values, DType dtype) {
  if (dtype == DType::kBF16) return RoundAs<BF16>(values);
  if (dtype == DType::kF16) return RoundAs<F16>(values);
  return {values.begin(), values.end()};
}

namespace {

template <typename T>
std::vector<float> QuantizedAndBack(std::span<const float> values, std::uint32_t group) {
  std::vector<float> stored;
  std::vector<T> q(group);
  for (std::size_t i = 0; i < values.size(); i += group) {
    const float scale = cache::QuantizeGroup<T>(&values[i], group, q.data()).scale;
    for (const T x : q) stored.push_back(cache::DequantizeValue<T>(x, scale));
  }
  return stored;
}

}  // namespace

std::vector<float> AsStored(std::span<const float> values, DType dtype, std::uint32_t group) {
  if (dtype == DType::kI8) return QuantizedAndBack<std::int8_t>(values, group);
  if (dtype == DType::kF8E4M3) return QuantizedAndBack<F8E4M3>(values, group);
  return Rounded(values, dtype);
}

double RelativeError(std::span<const float> a, std::span<const double> b) {
  EXPECT_EQ(a.size(), b.size());
  double difference = 0;
  double norm = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (!std::isfinite(a[i])) return std::numeric_limits<double>::infinity();
    difference += (double{a[i]} - b[i]) * (double{a[i]} - b[i]);
    norm += b[i] * b[i];
  }
  return std::sqrt(difference / std::max(norm, 1e-300));
}

GuardedRows::GuardedRows(std::uint32_t rows, std::uint32_t columns, std::uint32_t gap)
    : rows_(rows),
      columns_(columns),
      stride_(std::int64_t{columns} + gap),
      values_(2 * kGuard + static_cast<std::size_t>(rows * stride_),
              std::numeric_limits<float>::quiet_NaN()) {}

std::vector<float> GuardedRows::Packed() {
  std::vector<float> packed;
  for (std::uint32_t m = 0; m < rows_; ++m) {
    packed.insert(packed.end(), row(m).begin(), row(m).end());
  }
  return packed;
}

bool GuardedRows::GuardsIntact() const {
  for (std::size_t i = 0; i < values_.size(); ++i) {
    const auto at = static_cast<std::int64_t>(i) - static_cast<std::int64_t>(kGuard);
    const bool inside = at >= 0 && at < rows_ * stride_ && at % stride_ < columns_;
    if (!inside && !std::isnan(values_[i])) return false;
  }
  return true;
}

std::vector<std::string> AvailableIsas() {
  std::vector<std::string> isas;
  // Best first.
  for (const char* isa :
       {"amx", "avx512_vnni", "avx512", "avx_vnni", "avx2", "sse4", "neon", "scalar"}) {
    if (SelectCpuIsa(isa).ok()) isas.push_back(isa);
  }
  EXPECT_TRUE(SelectCpuIsa("auto").ok());
  return isas;
}

TestPool::TestPool(const Shape& shape, std::vector<std::uint32_t> cached,
                   std::vector<std::uint32_t> fresh, std::uint32_t seed) {
  std::uint32_t longest = 0;
  std::uint32_t pages = 0;
  const auto pages_of = [&](std::size_t b) {
    return (cached[b] + fresh[b] + shape.page_size - 1) / shape.page_size;
  };
  for (std::size_t b = 0; b < cached.size(); ++b) {
    longest = std::max(longest, pages_of(b));
    pages += pages_of(b);
  }
  geometry_.num_blocks = pages + 3;
  geometry_.num_layers = shape.layers;
  geometry_.page_size = shape.page_size;
  geometry_.num_heads = shape.heads;
  geometry_.head_size = shape.head_size;
  geometry_.dtype = shape.dtype;
  const bool quantized = DTypeSize(shape.dtype) == 1;
  if (quantized) {
    geometry_.scale_dtype = DType::kF32;
    geometry_.granularity = shape.head_size;
  }

  const auto page_bytes =
      static_cast<std::size_t>(geometry_.block_stride() * DTypeSize(geometry_.dtype));
  blocks_bytes_ = geometry_.num_blocks * page_bytes;
  // Bytes of 0xff are NaN in every element type.
  storage_.assign(blocks_bytes_ + 256, std::byte{0xff});
  std::memset(blocks(), 0, page_bytes);
  if (quantized) {
    const auto page_scales = static_cast<std::size_t>(geometry_.scale_block_stride() * 4);
    scales_bytes_ = geometry_.num_blocks * page_scales;
    scale_storage_.assign(scales_bytes_ + 256, std::byte{0xff});
    std::memset(scales(), 0, page_scales);
  }

  std::vector<std::uint32_t> ids(geometry_.num_blocks - 1);
  std::iota(ids.begin(), ids.end(), 1u);
  std::shuffle(ids.begin(), ids.end(), std::mt19937(seed));
  const std::uint32_t stride = (longest + 7) / 8 * 8 + 16;
  table_storage_.assign(cached.size() * stride + 8, 0);
  auto at = reinterpret_cast<std::uintptr_t>(table_storage_.data());
  auto* const table = reinterpret_cast<std::uint32_t*>((at + 31) / 32 * 32);
  std::size_t next = 0;
  for (std::size_t b = 0; b < cached.size(); ++b) {
    for (std::uint32_t i = 0; i < pages_of(b); ++i) table[b * stride + i] = ids[next++];
  }
  cached_.resize(cached.size());
  const cache::KvStepInputs inputs{table,
                                   cached_.data(),
                                   stride,
                                   static_cast<std::uint32_t>(cached.size()),
                                   longest * shape.page_size,
                                   longest * shape.page_size,
                                   longest * shape.page_size};
  auto made = MakeKvCollection(geometry_, blocks(), inputs, quantized ? scales() : nullptr);
  EXPECT_TRUE(made.ok()) << made.status();
  collection_.emplace(*std::move(made));
  SetStep(std::move(cached), std::move(fresh));
}

void TestPool::SetStep(std::vector<std::uint32_t> cached, std::vector<std::uint32_t> fresh) {
  // The views store a pointer to cached_.
  std::copy(cached.begin(), cached.end(), cached_.begin());
  row_offsets_ = {0};
  for (const std::uint32_t rows : fresh) row_offsets_.push_back(row_offsets_.back() + rows);
}

std::byte* TestPool::blocks() const {
  const auto at = reinterpret_cast<std::uintptr_t>(storage_.data());
  return const_cast<std::byte*>(storage_.data()) + ((at + 255) / 256 * 256 - at);
}

std::byte* TestPool::scales() const {
  const auto at = reinterpret_cast<std::uintptr_t>(scale_storage_.data());
  return const_cast<std::byte*>(scale_storage_.data()) + ((at + 255) / 256 * 256 - at);
}

void TestPool::Put(std::uint32_t b, std::uint32_t t, const float* k, const float* v,
                   std::uint32_t layer) {
  const AnyKvView any_keys = keys(layer);
  const AnyKvView any_values = values(layer);
  std::visit(
      [&](const auto& view) {
        using View = std::decay_t<decltype(view)>;
        const View& other = std::get<View>(any_values);
        const std::uint32_t d = view.head_size();
        if constexpr (View::kQuantized) {
          using T = typename View::Element;
          for (std::uint32_t h = 0; h < view.num_heads(); ++h) {
            for (const auto& [from, to] : {std::pair{k, &view}, {v, &other}}) {
              std::vector<T> q(d);
              const float scale = cache::QuantizeGroup(from + h * d, d, q.data()).scale;
              std::copy(q.begin(), q.end(), to->template block_paged_ptr<1>(b, t, h));
              *to->scales_block_paged_ptr(b, t, h) = scale;
            }
          }
        } else {
          using T = typename View::Element;
          for (std::uint32_t h = 0; h < view.num_heads(); ++h) {
            for (std::uint32_t c = 0; c < d; ++c) {
              const std::size_t i = h * d + c;
              view.template store<1>(b, h, t, c, Vec<T, 1>{{FromFloat<T>(k[i])}});
              other.template store<1>(b, h, t, c, Vec<T, 1>{{FromFloat<T>(v[i])}});
            }
          }
        }
      },
      any_keys);
}

}  // namespace quire::kernels
