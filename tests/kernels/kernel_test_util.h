#pragma once

// Shared helpers of the kernel tests: seeded data, guarded buffers, error measures, backends by
// thread count, and a paged pool with shuffled pages and NaN in all memory that must not be read.

#include <cstdint>
#include <memory>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "base/thread_pool.h"
#include "cache_manager/views/kv_params.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/backend/backend.h"
#include "kernels/kv_store/kv_dispatch.h"

namespace quire::kernels {

// A CPU backend with its own threads.
class TestBackend {
 public:
  explicit TestBackend(int threads, CpuActivations activations = CpuActivations::kInt8)
      : pool_(std::make_unique<ThreadPool>(threads)),
        backend_(*Backend::Create(Device::Cpu(), pool_.get(), activations)) {}
  const Backend& operator*() const { return backend_; }

 private:
  std::unique_ptr<ThreadPool> pool_;
  Backend backend_;
};

// Returns normally distributed values with the given deviation.
std::vector<float> RandomFloats(std::size_t count, std::uint32_t seed, float deviation = 1.0f);

// Returns `values` rounded to dtype, as bytes. On request one extra leading byte misaligns the
// data.
std::vector<std::byte> Encode(std::span<const float> values, DType dtype);
// Returns the values that the encoding represents.
std::vector<float> Rounded(std::span<const float> values, DType dtype);
// Returns the values as pages of that type represent them: rounded, or quantized and dequantized in
// groups of `group`.
std::vector<float> AsStored(std::span<const float> values, DType dtype, std::uint32_t group);

// Returns |a - b| / |b| by norm, or infinity if a is not finite.
double RelativeError(std::span<const float> a, std::span<const double> b);

// A matrix with rows `stride` apart, filled with NaN to detect skipped elements and writes outside
// its rows.
class GuardedRows {
 public:
  GuardedRows(std::uint32_t rows, std::uint32_t columns, std::uint32_t gap = 3);
  float* data() { return values_.data() + kGuard; }
  std::int64_t stride() const { return stride_; }
  std::span<float> row(std::uint32_t m) {
    return {data() + m * stride_, static_cast<std::size_t>(columns_)};
  }
  std::vector<float> Packed();
  // Returns true while all guards, including gaps, still contain NaN.
  bool GuardsIntact() const;

 private:
  static constexpr std::size_t kGuard = 16;
  std::uint32_t rows_;
  std::uint32_t columns_;
  std::int64_t stride_;
  std::vector<float> values_;
};

// Returns the instruction sets that this machine supports.
std::vector<std::string> AvailableIsas();

// Selects an instruction set and restores the best one.
class ScopedIsa {
 public:
  explicit ScopedIsa(const std::string& isa) { EXPECT_TRUE(SelectCpuIsa(isa).ok()) << isa; }
  ~ScopedIsa() { EXPECT_TRUE(SelectCpuIsa("auto").ok()); }
};

// One layer group of `layers` layers with pages in shuffled order. All elements and scales are NaN
// except in page 0. One-byte types have a scale per token and head.
class TestPool {
 public:
  struct Shape {
    DType dtype = DType::kF32;
    std::uint32_t layers = 1;
    std::uint32_t heads = 1;
    std::uint32_t head_size = 16;
    std::uint32_t page_size = 16;
  };

  // Sequence b has cached[b] tokens before this step and room for cached[b] + fresh[b].
  TestPool(const Shape& shape, std::vector<std::uint32_t> cached, std::vector<std::uint32_t> fresh,
           std::uint32_t seed);

  const AnyKvCollection& collection() const { return *collection_; }
  AnyKvView keys(std::uint32_t layer = 0) const { return KeyView(*collection_, layer); }
  AnyKvView values(std::uint32_t layer = 0) const { return ValueView(*collection_, layer); }
  const std::uint32_t* row_offsets() const { return row_offsets_.data(); }
  std::uint32_t num_rows() const { return row_offsets_.back(); }
  std::uint32_t batch_size() const { return static_cast<std::uint32_t>(cached_.size()); }
  const cache::KvGeometry& geometry() const { return geometry_; }
  std::span<std::byte> bytes() { return {blocks(), blocks_bytes_}; }
  std::span<std::byte> scale_bytes() { return {scales(), scales_bytes_}; }

  // Writes token t of sequence b, with [heads, head_size] values for K and V.
  void Put(std::uint32_t b, std::uint32_t t, const float* k, const float* v,
           std::uint32_t layer = 0);
  // Sets other lengths for the same pages, as in a later step.
  void SetStep(std::vector<std::uint32_t> cached, std::vector<std::uint32_t> fresh);

 private:
  std::byte* blocks() const;
  std::byte* scales() const;

  cache::KvGeometry geometry_;
  std::vector<std::uint32_t> cached_;
  std::vector<std::uint32_t> row_offsets_;
  std::vector<std::uint32_t> table_storage_;
  std::vector<std::byte> storage_;
  std::vector<std::byte> scale_storage_;
  std::size_t blocks_bytes_ = 0;
  std::size_t scales_bytes_ = 0;
  std::optional<AnyKvCollection> collection_;
};

}  // namespace quire::kernels
