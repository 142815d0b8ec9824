#include "tests/kernels/attention_cuda_fixture.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>

#include "base/status.h"
#include "cache_manager/views/kv_quantize.h"
#include "kernels/attention/kv_tensor_maps.h"
#include "tests/cuda_emulator/emulator.h"
#include "tests/kernels/kernel_test_util.h"

namespace quire::kernels {
namespace {

constexpr std::size_t kAlignment = 256;

template <typename T>
T* Align(std::vector<T>& storage, std::size_t alignment) {
  const auto at = reinterpret_cast<std::uintptr_t>(storage.data());
  return reinterpret_cast<T*>((at + alignment - 1) / alignment * alignment);
}

DType ScaleDType(DType kv) {
  return kv == DType::kF8E4M3 || kv == DType::kI8 ? DType::kF32 : DType::kInvalid;
}

// The arrays of a step.
struct StepArrays {
  std::vector<std::uint32_t> offsets{0};
  std::vector<std::uint32_t> cached;
  std::vector<std::uint32_t> prompt;
  std::vector<std::uint32_t> live{0};
  std::uint32_t longest = 1;
  explicit StepArrays(const std::vector<StepRows>& step) {
    for (const StepRows& rows : step) {
      if (rows.prompt + rows.generated > 0) {
        live.push_back(static_cast<std::uint32_t>(cached.size()));
        ++live[0];
      }
      offsets.push_back(offsets.back() + rows.prompt + rows.generated);
      cached.push_back(rows.cached);
      prompt.push_back(rows.prompt);
      longest = std::max(longest, rows.cached + rows.prompt + rows.generated);
    }
    live.resize(step.size() + 1);
  }
};

std::uint32_t RowsOf(const std::vector<StepRows>& step) {
  return StepArrays(step).offsets.back();
}

std::vector<std::byte> Poison(std::size_t elements, DType dtype) {
  return std::vector<std::byte>(elements * static_cast<std::size_t>(DTypeSize(dtype)),
                                std::byte{0xff});
}

// Returns the values of a row of a head as pages of T represent them.
template <typename T>
std::vector<float> Products(const float* row, std::uint32_t columns) {
  std::vector<T> elements(columns);
  const float scale = cache::QuantizeGroup(row, columns, elements.data()).scale;
  std::vector<float> products;
  for (const T element : elements) products.push_back(cache::DequantizeValue(element, scale));
  return products;
}

// Stores one row of a head from f32 values, quantized if the pages are.
template <typename View>
void StoreRow(const View& view, std::uint32_t b, std::uint32_t t, std::uint32_t h,
              const float* row) {
  auto* const to = view.template block_paged_ptr<1>(b, t, h);
  if constexpr (View::kQuantized) {
    const std::uint32_t group = view.granularity();
    for (std::uint32_t d = 0; d < view.head_size(); d += group) {
      const auto made =
          cache::QuantizeGroup(row + d, std::min(group, view.head_size() - d), to + d);
      *view.scales_block_paged_ptr(b, t, h, d) = made.scale;
    }
  } else {
    for (std::uint32_t d = 0; d < view.head_size(); ++d) {
      to[d] = FromFloat<typename View::Element>(row[d]);
    }
  }
}

std::vector<float> SinksOf(const AttentionShape& shape) {
  std::vector<float> sinks;
  for (std::uint32_t h = 0; h < shape.heads; ++h) sinks.push_back(shape.sink(h));
  return sinks;
}

// Returns the rows of one KV head of sequence b: [tokens][head_size].
template <typename View>
std::vector<float> RowsOfHead(const View& view, std::uint32_t b, std::uint32_t h,
                              std::uint32_t tokens) {
  std::vector<float> rows;
  rows.reserve(std::size_t{tokens} * view.head_size());
  for (std::uint32_t t = 0; t < tokens; ++t) {
    for (std::uint32_t d = 0; d < view.head_size(); ++d) {
      rows.push_back(view.template load<1, float>(b, h, t, d)[0]);
    }
  }
  return rows;
}

// Computes one row and query head with a two-pass softmax. `keys` and `values` are those of
// RowsOfHead.
void ExactHead(const AttentionShape& shape, const float* keys, const float* values,
               std::uint32_t query_head, std::uint32_t position, const float* q, double* out) {
  const std::size_t columns = shape.head_size;
  const double scale = shape.loudness / std::sqrt(static_cast<double>(columns));
  const std::uint32_t first = shape.chunk != 0 ? position - position % shape.chunk
                              : shape.window == 0 || position < shape.window
                                  ? 0
                                  : position - shape.window + 1;
  std::vector<double> p;
  for (std::uint32_t t = first; t <= position; ++t) {
    const float* const key = keys + t * columns;
    double score = 0;
    for (std::size_t d = 0; d < columns; ++d) score += double{q[d]} * key[d];
    score *= scale;
    p.push_back(shape.softcap > 0 ? shape.softcap * std::tanh(score / shape.softcap) : score);
  }
  const double max = *std::max_element(p.begin(), p.end());
  double sum = shape.sinks ? std::exp(shape.sink(query_head) - max) : 0;
  for (double& x : p) sum += x = std::exp(x - max);
  std::fill(out, out + columns, 0.0);
  for (std::uint32_t t = first; t <= position; ++t) {
    const float* const value = values + t * columns;
    const double weight = p[t - first] / sum;
    for (std::size_t d = 0; d < columns; ++d) out[d] += weight * value[d];
  }
}

}  // namespace

float AttentionShape::scale() const {
  return loudness / std::sqrt(static_cast<float>(head_size));
}

AttentionBackend::AttentionBackend(int num_sms, std::uint64_t seed) : pool_(1) {
  cuda_emulator::EmulatorOptions options = cuda_emulator::GetOptions();
  options.num_sms = num_sms;
  // QUIRE_EMULATOR_SEED changes every thread and block order of the tests.
  static const std::uint64_t first = options.seed;
  options.seed = first - 1 + seed;
  cuda_emulator::SetOptions(options);
  stream_ = std::make_unique<Stream>(*Stream::Create(*OpenCudaDevice(0)));
  backend_.emplace(*Backend::CreateCuda(*stream_, Determinism::kBatchInvariant, &pool_));
  // A real GPU takes no options, but plans and grids use this figure.
  const_cast<CudaContext*>(backend_->cuda())->num_sms = static_cast<std::uint32_t>(num_sms);
}

AttentionRig::AttentionRig(const AttentionShape& shape, std::vector<std::uint32_t> lengths,
                           std::uint32_t seed)
    : shape_(shape), lengths_(std::move(lengths)), zeros_(lengths_.size(), 0) {
  std::uint32_t pages = 0;
  std::uint32_t longest = 0;
  for (std::uint32_t s = 0; s < lengths_.size(); ++s) {
    pages += PagesOf(s);
    longest = std::max(longest, PagesOf(s));
  }
  lookup_stride_ = (longest + 7) / 8 * 8 + 16;
  geometry_.num_blocks = pages + 4;
  geometry_.num_layers = 1;
  geometry_.page_size = shape.page_size;
  geometry_.num_heads = shape.kv_heads;
  geometry_.head_size = shape.head_size;
  geometry_.dtype = shape.kv;
  geometry_.scale_dtype = ScaleDType(shape.kv);
  if (geometry_.quantized()) {
    geometry_.granularity = shape.granularity != 0 ? shape.granularity : shape.head_size;
  }
  // 0xff is NaN in every floating-point type. A one-byte integer gets its NaN from the scale.
  const auto block_bytes = static_cast<std::size_t>(geometry_.block_stride() * DTypeSize(shape.kv));
  const auto scale_bytes =
      geometry_.quantized() ? static_cast<std::size_t>(geometry_.scale_block_stride()) * 4 : 0;
  blocks_.assign(geometry_.num_blocks * block_bytes + kAlignment, std::byte{0xff});
  scales_.assign(geometry_.num_blocks * scale_bytes + kAlignment, std::byte{0xff});
  std::memset(Align(blocks_, kAlignment), 0, block_bytes);
  std::memset(Align(scales_, kAlignment), 0, scale_bytes);

  std::vector<std::uint32_t> ids(geometry_.num_blocks - 1);
  std::iota(ids.begin(), ids.end(), 1u);
  std::shuffle(ids.begin(), ids.end(), std::mt19937(seed));
  std::size_t next = 0;
  for (std::uint32_t s = 0; s < lengths_.size(); ++s) {
    pages_.emplace_back();
    for (std::uint32_t i = 0; i < PagesOf(s); ++i) pages_.back().push_back(ids[next++]);
    queries_.push_back(
        Rounded(RandomFloats(lengths_[s] * row_size(), seed + 100 + s), shape.activations));
    // The scores must be equal although the keys are not zero.
    if (shape.cancelling && shape.value_columns != 0) {
      queries_.back().assign(queries_.back().size(), 0.0f);
    }
  }
  const AnyKvCollection host = HostCollection();
  Fill(KeyView(host, 0), shape.value_columns != 0, seed + 1);
  Fill(ValueView(host, 0), true, seed + 2);
}

std::uint32_t AttentionRig::PagesOf(std::uint32_t sequence) const {
  return (lengths_[sequence] + shape_.page_size - 1) / shape_.page_size;
}

void AttentionRig::Cancel(std::uint32_t sequence, bool is_values, std::vector<float>* x) const {
  const std::size_t row = std::size_t{shape_.kv_heads} * shape_.head_size;
  const std::uint32_t half = lengths_[sequence] / 2;
  for (std::uint32_t t = 0; t < lengths_[sequence]; ++t) {
    for (std::size_t i = 0; i < row; ++i) {
      float& value = (*x)[t * row + i];
      if (!is_values) {
        value = 0;
      } else if (t >= half && t < 2 * half) {
        value = -(*x)[(t - half) * row + i];
      } else {
        value = std::ldexp(value, t < half ? static_cast<int>(t * 37 % 25) - 12 : 30);
      }
    }
  }
}

void AttentionRig::Fill(const AnyKvView& view, bool is_values, std::uint32_t seed) {
  std::visit(
      [&](const auto& v) {
        for (std::uint32_t s = 0; s < lengths_.size(); ++s) {
          const std::size_t row = std::size_t{shape_.kv_heads} * shape_.head_size;
          std::vector<float> x = RandomFloats(lengths_[s] * row, seed + 1000 * s);
          if (shape_.cancelling) Cancel(s, is_values, &x);
          for (std::uint32_t t = shape_.nan_tokens; t < lengths_[s]; ++t) {
            for (std::uint32_t h = 0; h < shape_.kv_heads; ++h) {
              const float* const from = x.data() + t * row + std::size_t{h} * shape_.head_size;
              if (shape_.products_of == DType::kF8E4M3) {
                StoreRow(v, s, t, h, Products<F8E4M3>(from, shape_.head_size).data());
              } else if (shape_.products_of == DType::kI8) {
                StoreRow(v, s, t, h, Products<std::int8_t>(from, shape_.head_size).data());
              } else {
                StoreRow(v, s, t, h, from);
              }
            }
          }
        }
      },
      view);
}

std::vector<std::uint32_t> AttentionRig::Table(const std::vector<StepRows>& step) const {
  std::vector<std::uint32_t> table(step.size() * lookup_stride_, 0);
  for (std::size_t b = 0; b < step.size(); ++b) {
    const std::uint32_t tokens = step[b].cached + step[b].prompt + step[b].generated;
    const std::uint32_t pages = (tokens + shape_.page_size - 1) / shape_.page_size;
    std::copy_n(pages_[step[b].sequence].begin(), pages, table.begin() + b * lookup_stride_);
  }
  return table;
}

AnyKvCollection AttentionRig::HostCollection() const {
  std::vector<StepRows> all;
  for (std::uint32_t s = 0; s < lengths_.size(); ++s) all.push_back({s, 0, lengths_[s], 0});
  const std::vector<std::uint32_t> table = Table(all);
  host_table_.assign(table.size() + 8, 0);
  std::uint32_t* const aligned = Align(host_table_, 32);
  std::copy(table.begin(), table.end(), aligned);
  auto& blocks = const_cast<std::vector<std::byte>&>(blocks_);
  auto& scales = const_cast<std::vector<std::byte>&>(scales_);
  auto made = MakeKvCollection(geometry_, Align(blocks, kAlignment),
                               {aligned, zeros_.data(), lookup_stride_,
                                static_cast<std::uint32_t>(lengths_.size()), 1, 1, 0},
                               geometry_.quantized() ? Align(scales, kAlignment) : nullptr);
  EXPECT_TRUE(made.ok()) << made.status();
  return *std::move(made);
}

std::vector<float> AttentionRig::Run(const AttentionBackend& cuda,
                                     const std::vector<StepRows>& step) const {
  DeviceStep device(*this, cuda, step);
  const absl::Status status = device.Enqueue();
  EXPECT_TRUE(status.ok()) << status;
  return device.Read();
}

bool AttentionRig::IsWanted(std::size_t column) const {
  return shape_.value_columns == 0 || column % shape_.head_size < shape_.value_columns;
}

std::vector<double> AttentionRig::Wanted(const std::vector<double>& rows) const {
  std::vector<double> wanted;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (IsWanted(i % row_size())) wanted.push_back(rows[i]);
  }
  return wanted;
}

std::vector<double> AttentionRig::Exact(const std::vector<StepRows>& step) const {
  std::vector<double> all;
  const AnyKvCollection host = HostCollection();
  const AnyKvView any_keys = KeyView(host, 0);
  const AnyKvView any_values = ValueView(host, 0);
  std::visit(
      [&](const auto& keys) {
        using View = std::decay_t<decltype(keys)>;
        const View& values =
            shape_.value_columns == 0 ? std::get<View>(any_values) : std::get<View>(any_keys);
        for (const StepRows& rows : step) {
          const std::uint32_t count = rows.prompt + rows.generated;
          std::vector<std::vector<float>> keys_of(shape_.kv_heads), values_of(shape_.kv_heads);
          for (std::uint32_t h = 0; h < shape_.kv_heads && count > 0; ++h) {
            keys_of[h] = RowsOfHead(keys, rows.sequence, h, rows.cached + count);
            values_of[h] = RowsOfHead(values, rows.sequence, h, rows.cached + count);
          }
          for (std::uint32_t i = 0; i < count; ++i) {
            const std::uint32_t position = rows.cached + i;
            const std::size_t at = all.size();
            all.resize(at + row_size());
            for (std::uint32_t h = 0; h < shape_.heads; ++h) {
              const std::uint32_t kv_head = h / (shape_.heads / shape_.kv_heads);
              ExactHead(shape_, keys_of[kv_head].data(), values_of[kv_head].data(), h, position,
                        queries_[rows.sequence].data() + position * row_size() +
                            std::size_t{h} * shape_.head_size,
                        all.data() + at + std::size_t{h} * shape_.head_size);
            }
          }
        }
      },
      any_keys);
  return Wanted(all);
}

DeviceStep::DeviceStep(const AttentionRig& rig, const AttentionBackend& cuda,
                       const std::vector<StepRows>& step, std::uint32_t max_rows)
    : rig_(rig),
      cuda_(cuda),
      blocks_(nullptr, [](std::byte* p) { EXPECT_EQ(cudaFree(p), cudaSuccess); }),
      scales_(cuda, std::vector<std::byte>(rig.scales_.begin(), rig.scales_.end())),
      table_(cuda, std::vector<std::uint32_t>(step.size() * rig.lookup_stride_)),
      cached_(cuda, std::vector<std::uint32_t>(step.size())),
      prompt_(cuda, std::vector<std::uint32_t>(step.size())),
      offsets_(cuda, std::vector<std::uint32_t>(step.size() + 1)),
      live_(cuda, std::vector<std::uint32_t>(step.size() + 1)),
      q_(cuda,
         Poison(std::max({max_rows, RowsOf(step), 1u}) * rig.row_size(), rig.shape_.activations)),
      out_(cuda, Poison((std::max({max_rows, RowsOf(step), 1u}) + 1) *
                            (rig.row_size() + rig.shape_.out_gap),
                        rig.shape_.activations)),
      sinks_(cuda, SinksOf(rig.shape_)) {
  const auto batch = static_cast<std::uint32_t>(step.size());
  max_rows = std::max({max_rows, RowsOf(step), 1u});
  out_host_ =
      Poison((max_rows + 1) * (rig.row_size() + rig.shape_.out_gap), rig.shape_.activations);
  UploadPool();
  MakeViews(batch, max_rows);
  planned_.row_offsets = offsets_.data();
  planned_.cache_lengths = cached_.data();
  planned_.prefill_tokens = prompt_.data();
  planned_.live_sequences = live_.data();
  planned_.batch_size = batch;
  auto plan = AttentionPlan::Create(
      *cuda, {batch, max_rows, 1, rig.shape_.heads, rig.shape_.kv_heads, rig.shape_.head_size,
              rig.shape_.plan_window.value_or(std::max(rig.shape_.window, rig.shape_.chunk))});
  EXPECT_TRUE(plan.ok()) << plan.status();
  plan_ = *std::move(plan);
  Set(step);
}

// The null page is at the front. The other pages follow first_page pages that keep the allocator's
// content.
void DeviceStep::UploadPool() {
  const auto page =
      static_cast<std::size_t>(rig_.geometry_.block_stride() * DTypeSize(rig_.shape_.kv));
  const std::size_t pages = rig_.geometry_.num_blocks;
  const std::byte* const from =
      Align(const_cast<std::vector<std::byte>&>(rig_.blocks_), kAlignment);
  void* memory = nullptr;
  ASSERT_EQ(cudaMalloc(&memory, (pages + rig_.shape_.first_page) * page), cudaSuccess);
  blocks_.reset(static_cast<std::byte*>(memory));
  const auto copy = [&](std::size_t to_page, std::size_t from_page, std::size_t count) {
    EXPECT_TRUE(cuda_.stream()
                    .Copy(blocks_.get() + to_page * page, from + from_page * page,
                          static_cast<std::int64_t>(count * page))
                    .ok());
  };
  copy(0, 0, 1);
  copy(rig_.shape_.first_page + 1, 1, pages - 1);
  const std::byte* const scales =
      Align(const_cast<std::vector<std::byte>&>(rig_.scales_), kAlignment);
  scales_.Write(cuda_, std::vector<std::byte>(scales, scales + rig_.scales_.size() - kAlignment));
}

void DeviceStep::MakeViews(std::uint32_t batch, std::uint32_t max_rows) {
  cache::KvGeometry geometry = rig_.geometry_;
  geometry.num_blocks += rig_.shape_.first_page;
  auto made =
      MakeKvCollection(geometry, blocks_.get(),
                       {table_.data(), cached_.data(), rig_.lookup_stride_, batch, max_rows, 1, 0},
                       geometry.quantized() ? scales_.data() : nullptr);
  EXPECT_TRUE(made.ok()) << made.status();
  collection_.emplace(*std::move(made));
  keys_ = KeyView(*collection_, 0);
  values_ = ValueView(*collection_, 0);
  if (rig_.shape_.tensor_maps) {
    auto maps = cuda::KvTensorMaps::Create(cuda_.stream().device(), *collection_);
    EXPECT_TRUE(maps.ok()) << maps.status();
    maps_ = *std::move(maps);
    EXPECT_NE(maps_, nullptr);
  }
}

void DeviceStep::Set(const std::vector<StepRows>& step) {
  const StepArrays arrays(step);
  std::vector<float> q;
  planned_.has_prompt_rows = false;
  planned_.has_generated_rows = false;
  for (const StepRows& rows : step) {
    planned_.has_prompt_rows |= rows.prompt > 0;
    planned_.has_generated_rows |= rows.generated > 0;
    const auto from = rig_.queries_[rows.sequence].begin() +
                      static_cast<std::ptrdiff_t>(rows.cached * rig_.row_size());
    q.insert(q.end(), from,
             from + static_cast<std::ptrdiff_t>((rows.prompt + rows.generated) * rig_.row_size()));
  }
  std::vector<std::uint32_t> table = rig_.Table(step);
  for (std::uint32_t& page : table) page += page != 0 ? rig_.shape_.first_page : 0;
  num_rows_ = arrays.offsets.back();
  table_.Write(cuda_, table);
  cached_.Write(cuda_, arrays.cached);
  prompt_.Write(cuda_, arrays.prompt);
  offsets_.Write(cuda_, arrays.offsets);
  live_.Write(cuda_, arrays.live);
  q_.Write(cuda_, Encode(q, rig_.shape_.activations));
  std::fill(out_host_.begin(), out_host_.end(), std::byte{0xff});
  out_.Write(cuda_, out_host_);
}

absl::Status DeviceStep::Enqueue() const {
  return Enqueue(PagedAttention);
}

absl::Status DeviceStep::Enqueue(
    absl::FunctionRef<absl::Status(const Backend&, const AttentionParams&)> op) const {
  const AttentionShape& shape = rig_.shape_;
  QUIRE_RETURN_IF_ERROR(PlanAttention(*cuda_, planned_, plan_.get()));
  AttentionParams params{};
  params.keys = &*keys_;
  params.values = shape.value_columns == 0 ? &*values_ : params.keys;
  params.value_columns = shape.value_columns;
  params.q = ConstFloatPtr(q_.data(), shape.activations);
  params.out = FloatPtr(out_.data(), shape.activations);
  params.row_offsets = offsets_.data();
  params.q_stride = static_cast<std::int64_t>(rig_.row_size());
  params.out_stride = static_cast<std::int64_t>(rig_.row_size() + rig_.shape_.out_gap);
  params.batch_size = planned_.batch_size;
  params.num_heads = shape.heads;
  params.scale = shape.scale();
  params.window = shape.window;
  params.chunk = shape.chunk;
  params.softcap = shape.softcap;
  params.sinks = shape.sinks ? sinks_.data() : nullptr;
  params.plan = plan_.get();
  params.maps = maps_.get();
  return op(*cuda_, params);
}

std::vector<float> DeviceStep::Read() {
  out_.Read(cuda_, &out_host_);
  const std::size_t stride = rig_.row_size() + rig_.shape_.out_gap;
  const auto size = static_cast<std::size_t>(DTypeSize(rig_.shape_.activations));
  std::vector<float> result;
  for (std::size_t i = 0; i < out_host_.size() / size; ++i) {
    float x;
    if (rig_.shape_.activations == DType::kF32) {
      std::memcpy(&x, out_host_.data() + i * 4, 4);
    } else {
      BF16 bits;
      std::memcpy(&bits, out_host_.data() + i * 2, 2);
      x = bits.ToFloat();
    }
    if (i < num_rows_ * stride && i % stride < rig_.row_size()) {
      if (rig_.IsWanted(i % stride)) result.push_back(x);
    } else {
      EXPECT_TRUE(std::isnan(x)) << "written between or after the rows, at element " << i;
    }
  }
  return result;
}

}  // namespace quire::kernels
