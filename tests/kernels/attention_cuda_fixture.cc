#include "tests/kernels/attention_cuda_fixture.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>

#include "cache_manager/kv_quantize.h"
#include "kernels/cuda/kv_tensor_maps.h"
#include "tests/cuda_emulator/emulator.h"
#include "tests/kernels/kernel_test_util.h"

namespace quire::kernels {
namespace {

constexpr std::size_t kAlignment = 256;
constexpr std::uint32_t kOutGap = 8;  // columns between rows of the output

template <typename T>
T* Align(std::vector<T>& storage, std::size_t alignment) {
  const auto at = reinterpret_cast<std::uintptr_t>(storage.data());
  return reinterpret_cast<T*>((at + alignment - 1) / alignment * alignment);
}

DType ScaleDType(DType kv) {
  return kv == DType::kF8E4M3 || kv == DType::kI8 ? DType::kF32 : DType::kInvalid;
}

// One row of a head from f32 values, quantised where the pages are.
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

double Exp(double x) {
  return std::exp(x);
}

// One row and head: softmax in two passes.
template <typename View>
void ExactHead(const View& keys, const View& values, std::uint32_t b, std::uint32_t h,
               std::uint32_t position, const float* q, double* out) {
  const std::uint32_t columns = keys.head_size();
  const double scale = 1 / std::sqrt(double{1} * columns);
  std::vector<double> p;
  for (std::uint32_t t = 0; t <= position; ++t) {
    double score = 0;
    for (std::uint32_t d = 0; d < columns; ++d) {
      score += double{q[d]} * keys.template load<1, float>(b, h, t, d)[0];
    }
    p.push_back(score * scale);
  }
  const double max = *std::max_element(p.begin(), p.end());
  double sum = 0;
  for (double& x : p) sum += x = Exp(x - max);
  std::fill(out, out + columns, 0.0);
  for (std::uint32_t t = 0; t <= position; ++t) {
    for (std::uint32_t d = 0; d < columns; ++d) {
      out[d] += p[t] / sum * values.template load<1, float>(b, h, t, d)[0];
    }
  }
}

}  // namespace

CudaBackend::CudaBackend(int num_sms, std::uint64_t seed) : pool_(1) {
  cuda_emulator::EmulatorOptions options = cuda_emulator::GetOptions();
  options.num_sms = num_sms;
  options.seed = seed;
  cuda_emulator::SetOptions(options);
  stream_ = std::make_unique<Stream>(*Stream::Create(*OpenCudaDevice(0)));
  backend_.emplace(*Backend::CreateCuda(*stream_, Determinism::kBatchInvariant, &pool_));
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
  // 0xff is NaN in every floating-point type; a one-byte integer gets its NaN from the scale.
  const auto block_bytes =
      static_cast<std::size_t>(geometry_.block_stride() * DTypeSize(shape.kv));
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
  }
  const AnyKvCollection host = HostCollection();
  Fill(KeyView(host, 0), seed + 1);
  Fill(ValueView(host, 0), seed + 2);
}

std::uint32_t AttentionRig::PagesOf(std::uint32_t sequence) const {
  return (lengths_[sequence] + shape_.page_size - 1) / shape_.page_size;
}

void AttentionRig::Fill(const AnyKvView& view, std::uint32_t seed) {
  std::visit(
      [&](const auto& v) {
        for (std::uint32_t s = 0; s < lengths_.size(); ++s) {
          const std::size_t row = std::size_t{shape_.kv_heads} * shape_.head_size;
          const std::vector<float> x = RandomFloats(lengths_[s] * row, seed + 1000 * s);
          for (std::uint32_t t = 0; t < lengths_[s]; ++t) {
            for (std::uint32_t h = 0; h < shape_.kv_heads; ++h) {
              StoreRow(v, s, t, h, x.data() + t * row + std::size_t{h} * shape_.head_size);
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
  auto made = MakeKvCollection(
      geometry_, Align(blocks, kAlignment),
      {aligned, zeros_.data(), lookup_stride_, static_cast<std::uint32_t>(lengths_.size()), 1, 1, 0},
      geometry_.quantized() ? Align(scales, kAlignment) : nullptr);
  EXPECT_TRUE(made.ok()) << made.status();
  return *std::move(made);
}

std::vector<float> AttentionRig::Run(const CudaBackend& cuda,
                                     const std::vector<StepRows>& step) const {
  const auto batch = static_cast<std::uint32_t>(step.size());
  std::vector<std::uint32_t> offsets{0};
  std::vector<std::uint32_t> cached;
  std::vector<std::uint32_t> prompt;
  std::vector<float> q;
  AttentionPlanParams planned{};
  AttentionPlanLimits limits{batch, 0, 1, shape_.heads, shape_.kv_heads, shape_.head_size};
  for (const StepRows& rows : step) {
    const std::uint32_t count = rows.prompt + rows.generated;
    offsets.push_back(offsets.back() + count);
    cached.push_back(rows.cached);
    prompt.push_back(rows.prompt);
    planned.has_prompt_rows |= rows.prompt > 0;
    planned.has_generated_rows |= rows.generated > 0;
    const auto from = queries_[rows.sequence].begin() +
                      static_cast<std::ptrdiff_t>(rows.cached * row_size());
    q.insert(q.end(), from, from + static_cast<std::ptrdiff_t>(count * row_size()));
    limits.max_length = std::max(limits.max_length, rows.cached + count);
  }
  const std::uint32_t num_rows = offsets.back();
  limits.max_step_tokens = std::max(num_rows, 1u);

  const auto table_values = Table(step);
  auto& blocks_host = const_cast<std::vector<std::byte>&>(blocks_);
  auto& scales_host = const_cast<std::vector<std::byte>&>(scales_);
  const auto aligned_copy = [](std::vector<std::byte>& from) {
    const std::byte* const begin = Align(from, kAlignment);
    return std::vector<std::byte>(begin, begin + from.size() - kAlignment);
  };
  const DeviceArray<std::byte> blocks(cuda, aligned_copy(blocks_host));
  std::vector<std::byte> scale_bytes = aligned_copy(scales_host);
  scale_bytes.resize(std::max<std::size_t>(scale_bytes.size(), 16));
  const DeviceArray<std::byte> scales(cuda, scale_bytes);
  const DeviceArray<std::uint32_t> table(cuda, table_values);
  const DeviceArray<std::uint32_t> device_cached(cuda, cached);
  const DeviceArray<std::uint32_t> device_prompt(cuda, prompt);
  const DeviceArray<std::uint32_t> device_offsets(cuda, offsets);
  const DeviceArray<std::byte> device_q(cuda, Encode(q, shape_.activations));
  const std::size_t out_stride = row_size() + kOutGap;
  std::vector<std::byte> out(
      (num_rows + 1) * out_stride * static_cast<std::size_t>(DTypeSize(shape_.activations)),
      std::byte{0xff});
  const DeviceArray<std::byte> device_out(cuda, out);

  auto made = MakeKvCollection(
      geometry_, blocks.data(),
      {table.data(), device_cached.data(), lookup_stride_, batch, num_rows, limits.max_length, 0},
      geometry_.quantized() ? scales.data() : nullptr);
  EXPECT_TRUE(made.ok()) << made.status();
  const AnyKvView keys = KeyView(*made, 0);
  const AnyKvView values = ValueView(*made, 0);
  planned.row_offsets = device_offsets.data();
  planned.cache_lengths = device_cached.data();
  planned.prompt_rows = device_prompt.data();
  planned.batch_size = batch;
  auto plan = AttentionPlan::Create(*cuda, limits);
  EXPECT_TRUE(plan.ok()) << plan.status();
  EXPECT_TRUE(PlanAttention(*cuda, planned, plan->get()).ok());
  AttentionParams params{};
  params.keys = &keys;
  params.values = &values;
  params.q = ConstFloatPtr(device_q.data(), shape_.activations);
  params.out = FloatPtr(device_out.data(), shape_.activations);
  params.row_offsets = device_offsets.data();
  params.q_stride = static_cast<std::int64_t>(row_size());
  params.out_stride = static_cast<std::int64_t>(out_stride);
  params.batch_size = batch;
  params.num_heads = shape_.heads;
  params.scale = 1 / std::sqrt(static_cast<float>(shape_.head_size));
  params.plan = plan->get();
  std::unique_ptr<quire::kernels::cuda::KvTensorMaps> maps;
  if (shape_.tensor_maps) {
    auto made_maps = quire::kernels::cuda::KvTensorMaps::Create(cuda.stream().device(), *made);
    EXPECT_TRUE(made_maps.ok()) << made_maps.status();
    maps = *std::move(made_maps);
    EXPECT_NE(maps, nullptr);
  }
  params.maps = maps.get();
  const absl::Status status = PagedAttention(*cuda, params);
  EXPECT_TRUE(status.ok()) << status;
  device_out.Read(cuda, &out);

  std::vector<float> result;
  for (std::size_t i = 0; i < (num_rows + 1) * out_stride; ++i) {
    float x;
    if (shape_.activations == DType::kF32) {
      std::memcpy(&x, out.data() + i * 4, 4);
    } else {
      BF16 bits;
      std::memcpy(&bits, out.data() + i * 2, 2);
      x = bits.ToFloat();
    }
    if (i < num_rows * out_stride && i % out_stride < row_size()) {
      result.push_back(x);
    } else {
      EXPECT_TRUE(std::isnan(x)) << "written between or behind the rows, at element " << i;
    }
  }
  return result;
}

std::vector<double> AttentionRig::Exact(const std::vector<StepRows>& step) const {
  std::vector<double> all;
  const AnyKvCollection host = HostCollection();
  const AnyKvView any_values = ValueView(host, 0);
  std::visit(
      [&](const auto& keys) {
        using View = std::decay_t<decltype(keys)>;
        const View& values = std::get<View>(any_values);
        for (const StepRows& rows : step) {
          for (std::uint32_t i = 0; i < rows.prompt + rows.generated; ++i) {
            const std::uint32_t position = rows.cached + i;
            const std::size_t at = all.size();
            all.resize(at + row_size());
            for (std::uint32_t h = 0; h < shape_.heads; ++h) {
              ExactHead(keys, values, rows.sequence, h / (shape_.heads / shape_.kv_heads), position,
                        queries_[rows.sequence].data() + position * row_size() +
                            std::size_t{h} * shape_.head_size,
                        all.data() + at + std::size_t{h} * shape_.head_size);
            }
          }
        }
      },
      KeyView(host, 0));
  return all;
}

}  // namespace quire::kernels
