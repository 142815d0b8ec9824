#pragma once

// Shared helpers of the Linear tests on an emulated GPU: rows in device memory, exact results, and
// bitwise comparison of rows in different batches.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <span>
#include <vector>

#include "base/device_buffer.h"
#include "base/stream.h"
#include "base/thread_pool.h"
#include "kernels/linear/linear.h"
#include "tests/kernels/kernel_test_util.h"

namespace quire::kernels {

// An emulated device with a stream and a backend.
class CudaBackend {
 public:
  CudaBackend()
      : pool_(2),
        device_(*OpenCudaDevice(0)),
        stream_(std::make_unique<Stream>(*Stream::Create(device_))),
        backend_(*Backend::CreateCuda(*stream_, Determinism::kBatchInvariant, &pool_)) {}
  const Backend& operator*() const { return backend_; }
  const Stream& stream() const { return *stream_; }

 private:
  ThreadPool pool_;
  Device device_;
  std::unique_ptr<Stream> stream_;
  Backend backend_;
};

// A matrix in device memory with rows stride apart. Everything that Put did not write is NaN.
class DeviceRows {
 public:
  DeviceRows(const CudaBackend& cuda, DType dtype, std::uint32_t rows, std::uint32_t columns,
             std::uint32_t stride)
      : cuda_(cuda),
        dtype_(dtype),
        rows_(rows),
        columns_(columns),
        stride_(stride),
        bytes_((std::size_t{rows} * stride + 2 * kGuard) * Size(), std::byte{0xff}),
        device_(*DeviceBuffer::Allocate(MemoryKind::kDevice,
                                        static_cast<std::int64_t>(bytes_.size()))) {
    Upload();
  }

  void Put(std::span<const float> values) {
    const auto encoded = Encode(values, dtype_);
    for (std::uint32_t m = 0; m < rows_; ++m) {
      std::memcpy(Row(m), encoded.data() + std::size_t{m} * columns_ * Size(), columns_ * Size());
    }
    Upload();
  }
  std::vector<float> Get() {
    EXPECT_TRUE(cuda_.stream()
                    .Copy(bytes_.data(), device_.data(), static_cast<std::int64_t>(bytes_.size()))
                    .ok());
    const absl::Status status = cuda_.stream().Synchronize();
    EXPECT_TRUE(status.ok()) << status;
    std::vector<float> values;
    for (std::uint32_t m = 0; m < rows_; ++m) {
      for (std::uint32_t n = 0; n < columns_; ++n) {
        float value;
        if (dtype_ == DType::kF32) {
          std::memcpy(&value, Row(m) + n * 4, 4);
        } else {
          BF16 bits;
          std::memcpy(&bits, Row(m) + n * 2, 2);
          value = bits.ToFloat();
        }
        values.push_back(value);
      }
    }
    return values;
  }
  // Returns true if all bytes outside the rows were untouched at the last Get.
  bool GuardsIntact() {
    std::vector<std::byte> copy = bytes_;
    bytes_.swap(copy);
    for (std::uint32_t m = 0; m < rows_; ++m) {
      std::fill_n(Row(m), columns_ * Size(), std::byte{0xff});
    }
    const bool intact =
        std::all_of(bytes_.begin(), bytes_.end(), [](std::byte b) { return b == std::byte{0xff}; });
    bytes_.swap(copy);
    return intact;
  }
  FloatPtr ptr() const {
    return FloatPtr(static_cast<std::byte*>(device_.data()) + kGuard * Size(), dtype_);
  }
  float* f32() const { return ptr().f32(); }
  std::int64_t stride() const { return stride_; }

 private:
  static constexpr std::size_t kGuard = 16;
  std::size_t Size() const { return static_cast<std::size_t>(DTypeSize(dtype_)); }
  std::byte* Row(std::uint32_t m) {
    return bytes_.data() + (kGuard + std::size_t{m} * stride_) * Size();
  }
  void Upload() {
    EXPECT_TRUE(cuda_.stream()
                    .Copy(device_.data(), bytes_.data(), static_cast<std::int64_t>(bytes_.size()))
                    .ok());
  }

  const CudaBackend& cuda_;
  DType dtype_;
  std::uint32_t rows_;
  std::uint32_t columns_;
  std::uint32_t stride_;
  std::vector<std::byte> bytes_;
  DeviceBuffer device_;
};

// Returns sum_k x[m][k] w[n][k] + bias[n] + residual[m][n]. Bias and residual may be empty.
inline std::vector<double> Exact(std::span<const float> x, std::span<const float> w,
                                 std::span<const float> bias, std::span<const float> residual,
                                 std::uint32_t rows, std::uint32_t n, std::uint32_t k) {
  std::vector<double> y(std::size_t{rows} * n);
  // Rows are computed in fours, since each addition waits for the one before in its sum.
  for (std::uint32_t first = 0; first < rows; first += 4) {
    const auto row = [&](std::uint32_t i) { return std::min(first + i, rows - 1); };
    const float* const from[] = {&x[row(0) * k], &x[row(1) * k], &x[row(2) * k], &x[row(3) * k]};
    for (std::uint32_t j = 0; j < n; ++j) {
      const double start = bias.empty() ? 0 : bias[j];
      double a = start, b = start, c = start, d = start;
      if (!residual.empty()) {
        a += residual[row(0) * n + j];
        b += residual[row(1) * n + j];
        c += residual[row(2) * n + j];
        d += residual[row(3) * n + j];
      }
      for (std::uint32_t i = 0; i < k; ++i) {
        const double weight = w[j * k + i];
        a += from[0][i] * weight;
        b += from[1][i] * weight;
        c += from[2][i] * weight;
        d += from[3][i] * weight;
      }
      y[row(0) * n + j] = a;
      y[row(1) * n + j] = b;
      y[row(2) * n + j] = c;
      y[row(3) * n + j] = d;
    }
  }
  return y;
}

struct Run {
  DType x_dtype = DType::kBF16;
  DType y_dtype = DType::kF32;
  bool extras = false;    // bias and residual
  bool in_place = false;  // the residual is y
};

struct Inputs {
  Inputs(std::uint32_t rows, std::uint32_t n, std::uint32_t k, DType x_dtype)
      : x(Rounded(RandomFloats(std::size_t{rows} * k, 2), x_dtype)),
        bias(RandomFloats(n, 3)),
        residual(RandomFloats(std::size_t{rows} * n, 4)) {}
  std::vector<float> x, bias, residual;
};

// Returns y of rows first .. first + rows of the inputs, with NaN around them. If the number of
// columns is a multiple of 8, four columns can be stored at a time.
inline std::vector<float> Compute(const CudaBackend& cuda, const PackedLinear& weight,
                                  const Inputs& inputs, const Run& run, std::uint32_t first,
                                  std::uint32_t rows) {
  const std::uint32_t n = weight.n(), k = weight.k();
  DeviceRows x(cuda, run.x_dtype, rows, k, (k + 7) / 8 * 8 + 8);
  const std::uint32_t gap = n % 8 == 0 ? 4 : 3;
  DeviceRows y(cuda, run.y_dtype, rows, n, n + gap);
  DeviceRows bias(cuda, DType::kF32, 1, n, n);
  DeviceRows residual(cuda, DType::kF32, rows, n, n + 2 * gap);
  x.Put({inputs.x.data() + std::size_t{first} * k, std::size_t{rows} * k});
  bias.Put(inputs.bias);
  const std::span<const float> added{inputs.residual.data() + std::size_t{first} * n,
                                     std::size_t{rows} * n};
  residual.Put(added);
  if (run.in_place) y.Put(added);
  const LinearParams params{.x = x.ptr(),
                            .weight = &weight,
                            .bias = run.extras ? bias.f32() : nullptr,
                            .residual = run.in_place ? y.f32()
                                        : run.extras ? residual.f32()
                                                     : nullptr,
                            .y = y.ptr(),
                            .x_stride = x.stride(),
                            .residual_stride = run.in_place ? y.stride() : residual.stride(),
                            .y_stride = y.stride(),
                            .num_rows = rows};
  const absl::Status status = Linear(*cuda, params);
  EXPECT_TRUE(status.ok()) << status;
  std::vector<float> result = y.Get();
  EXPECT_TRUE(y.GuardsIntact());
  return result;
}

inline PackedLinear Pack(const CudaBackend& cuda, std::span<const float> w, DType dtype,
                         std::uint32_t n, std::uint32_t k, DType activations = DType::kBF16) {
  const auto bytes = Encode(w, dtype);
  const WeightRows rows{bytes.data(), n};
  auto packed = PackLinearWeights(*cuda, {&rows, 1}, dtype, k, {.activations = activations});
  EXPECT_TRUE(packed.ok()) << packed.status();
  return *std::move(packed);
}

// Additional error of storing in y's type.
inline double Tolerance(DType y_dtype) {
  return y_dtype == DType::kBF16 ? 2.5e-3 : 1e-5;
}

// Compares one row bitwise in any batch and with any division of the work: the tiles for 8, 16, 32,
// 64 and 128 rows, sub-ranges in separate blocks and in one.
inline void ExpectRowsInvariant(const CudaBackend& cuda, const PackedLinear& packed, const Run& run,
                                std::uint32_t all, std::span<const std::uint32_t> counts) {
  const std::uint32_t n = packed.n();
  const Inputs in(all, n, packed.k(), run.x_dtype);
  const auto reference = Compute(cuda, packed, in, run, 0, all);
  for (const std::uint32_t rows : counts) {
    for (const std::uint32_t first : {0u, all - rows}) {
      const auto y = Compute(cuda, packed, in, run, first, rows);
      EXPECT_EQ(std::memcmp(y.data(), reference.data() + std::size_t{first} * n, y.size() * 4), 0)
          << "rows " << rows << " from " << first << " of " << packed.n() << "x" << packed.k();
    }
  }
}

}  // namespace quire::kernels
