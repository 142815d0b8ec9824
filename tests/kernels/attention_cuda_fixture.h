#pragma once

// Paged attention on the emulated GPU. Sequences of random K, V and queries are stored in a pool
// whose other bytes are NaN. Steps over them are compared with double precision over the stored
// values.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "base/device_buffer.h"
#include "base/stream.h"
#include "base/thread_pool.h"
#include "gtest/gtest.h"
#include "kernels/attention/attention.h"
#include "kernels/attention/attention_plan.h"
#include "kernels/attention/kv_tensor_maps.h"
#include "kernels/backend/backend.h"
#include "kernels/kv_store/kv_dispatch.h"

namespace quire::kernels {

// An emulated device with a stream and a backend.
class AttentionBackend {
 public:
  // A device with `num_sms` multiprocessors, or a real one that is used as if it had so many.
  // Emulated threads and blocks run in the order of `seed`.
  explicit AttentionBackend(int num_sms = 4, std::uint64_t seed = 1);
  const Backend& operator*() const { return *backend_; }
  const Stream& stream() const { return *stream_; }
  std::uint32_t num_sms() const { return backend_->cuda()->num_sms; }

 private:
  ThreadPool pool_;
  std::unique_ptr<Stream> stream_;
  std::optional<Backend> backend_;
};

// Device memory with a copy of `values`.
template <typename T>
class AttentionArray {
 public:
  AttentionArray(const AttentionBackend& cuda, const std::vector<T>& values)
      : buffer_(*DeviceBuffer::Allocate(MemoryKind::kDevice, Bytes(values))) {
    EXPECT_TRUE(cuda.stream().Copy(buffer_.data(), values.data(), Bytes(values)).ok());
  }
  T* data() const { return static_cast<T*>(buffer_.data()); }
  // REQUIRES: `values` has at most the initial size.
  void Write(const AttentionBackend& cuda, const std::vector<T>& values) const {
    EXPECT_TRUE(cuda.stream().Copy(buffer_.data(), values.data(), Bytes(values)).ok());
  }
  void Read(const AttentionBackend& cuda, std::vector<T>* values) const {
    EXPECT_TRUE(cuda.stream().Copy(values->data(), buffer_.data(), Bytes(*values)).ok());
    const absl::Status status = cuda.stream().Synchronize();
    EXPECT_TRUE(status.ok()) << status;
  }

 private:
  static std::int64_t Bytes(const std::vector<T>& values) {
    return static_cast<std::int64_t>(values.size() * sizeof(T));
  }
  DeviceBuffer buffer_;
};

struct AttentionShape {
  std::uint32_t heads = 8;
  std::uint32_t kv_heads = 2;
  std::uint32_t head_size = 64;
  std::uint32_t page_size = 16;
  DType kv = DType::kBF16;
  DType activations = DType::kBF16;
  std::uint32_t granularity = 0;  // of one-byte pages; 0 means the whole head
  bool tensor_maps = false;
  std::uint32_t out_gap = 8;  // columns between rows of the output
  // If set, all keys are zero and values differ by powers of two from token to token. The values of
  // a sequence's second half cancel those of its first half. The result is then the rounding error
  // of the sums, so that a changed order is visible even in bf16. The extra token of an odd length
  // is larger than all others. Rows that serve as keys and values contain the values, and the
  // queries are zero.
  bool cancelling = false;
  std::uint32_t first_page =
      0;  // added to the page ids on the device; no step names the pages before
  std::uint32_t window = 0;
  std::uint32_t chunk = 0;
  std::optional<std::uint32_t> plan_window = std::nullopt;  // replaces the plan's window
  float softcap = 0;
  bool sinks = false;            // one per head, 2 to 10
  float loudness = 1;            // factor on q . k in addition to the usual scale
  std::uint32_t nan_tokens = 0;  // leading tokens of every sequence that stay NaN
  // Applies to bf16 pages. They contain the elements of pages of this one-byte type times their
  // scale. kInvalid means the values themselves.
  DType products_of = DType::kInvalid;
  // If not 0, the keys are also the values, and this is the number of value columns.
  std::uint32_t value_columns = 0;

  float scale() const;
  float sink(std::uint32_t head) const { return static_cast<float>(head * 37 % 5 * 2 + 2); }
};

// Rows of one sequence in a step.
struct StepRows {
  std::uint32_t sequence;
  std::uint32_t cached;
  std::uint32_t prompt;
  std::uint32_t generated;
};

class DeviceStep;

class AttentionRig {
 public:
  // Creates sequences with these numbers of tokens, all stored.
  AttentionRig(const AttentionShape& shape, std::vector<std::uint32_t> lengths, std::uint32_t seed);

  // Runs one step and returns the output of PagedAttention row by row, [heads, value columns] each.
  std::vector<float> Run(const AttentionBackend& cuda, const std::vector<StepRows>& step) const;
  // Computes the same in double precision.
  std::vector<double> Exact(const std::vector<StepRows>& step) const;

  const AttentionShape& shape() const { return shape_; }
  std::size_t row_size() const { return std::size_t{shape_.heads} * shape_.head_size; }

 private:
  friend class DeviceStep;

  std::uint32_t PagesOf(std::uint32_t sequence) const;
  // Columns per row of the output.
  bool IsWanted(std::size_t column) const;
  std::vector<double> Wanted(const std::vector<double>& rows) const;
  std::vector<std::uint32_t> Table(const std::vector<StepRows>& step) const;
  // Views of the pool in host memory, one row per sequence.
  AnyKvCollection HostCollection() const;
  void Fill(const AnyKvView& view, bool is_values, std::uint32_t seed);
  // Row of token t of a sequence in x, one row per token.
  void Cancel(std::uint32_t sequence, bool is_values, std::vector<float>* x) const;

  AttentionShape shape_;
  std::vector<std::uint32_t> lengths_;
  cache::KvGeometry geometry_;
  std::uint32_t lookup_stride_ = 0;
  std::vector<std::vector<std::uint32_t>> pages_;  // by sequence
  mutable std::vector<std::uint32_t> host_table_;
  std::vector<std::uint32_t> zeros_;
  std::vector<std::byte> blocks_;
  std::vector<std::byte> scales_;
  std::vector<std::vector<float>> queries_;  // by sequence, as the activations represent them
};

// A rig's pool in device memory, and steps of one batch size whose inputs have fixed addresses.
class DeviceStep {
 public:
  // Reserves room for steps of `max_rows` rows, or of the rows of `step` if it is 0.
  DeviceStep(const AttentionRig& rig, const AttentionBackend& cuda,
             const std::vector<StepRows>& step, std::uint32_t max_rows = 0);
  // Writes other rows to the same addresses. The output becomes NaN.
  void Set(const std::vector<StepRows>& step);
  // Runs the planner and the op, or a replacement of the op.
  absl::Status Enqueue() const;
  absl::Status Enqueue(
      absl::FunctionRef<absl::Status(const Backend&, const AttentionParams&)> op) const;
  // Returns the output, and checks that all other memory is still NaN.
  std::vector<float> Read();

 private:
  void UploadPool();
  void MakeViews(std::uint32_t batch, std::uint32_t max_rows);

  const AttentionRig& rig_;
  const AttentionBackend& cuda_;
  std::uint32_t num_rows_ = 0;
  std::unique_ptr<std::byte, void (*)(std::byte*)> blocks_;
  AttentionArray<std::byte> scales_;
  AttentionArray<std::uint32_t> table_;
  AttentionArray<std::uint32_t> cached_;
  AttentionArray<std::uint32_t> prompt_;
  AttentionArray<std::uint32_t> offsets_;
  AttentionArray<std::uint32_t> live_;
  AttentionArray<std::byte> q_;
  AttentionArray<std::byte> out_;
  AttentionArray<float> sinks_;
  std::vector<std::byte> out_host_;
  AttentionPlanParams planned_{};
  std::unique_ptr<AttentionPlan> plan_;
  std::optional<AnyKvCollection> collection_;
  std::optional<AnyKvView> keys_;
  std::optional<AnyKvView> values_;
  std::unique_ptr<cuda::KvTensorMaps> maps_;
};

}  // namespace quire::kernels
