#pragma once

// Communication between the devices that share one model.

#include <cstddef>
#include <cstdint>
#include <span>

#include "absl/status/status.h"

namespace quire {
class Event;
}

namespace quire::kernels {

class Backend;

// One rank of a group. All ranks call the same operations in the same order with the same sizes.
// HostCommunicator exchanges host memory between threads of one process. Its operations are
// complete when they return. NcclCommunicator uses NCCL. Its operations are enqueued on a stream of
// the rank's GPU.
//
// Place:      created together with the backends of a model's ranks; used by runners and blocks.
// Invariants: The result of an operation depends only on the ranks' arguments, not on the order of
//             their calls. It is the same bit for bit on all ranks. After the first error every
//             AllReduceSum and AllGather of the group fails, and no rank waits for another.
// Threads:    Each rank's operations run on one thread at a time; Abort runs on any thread.
// Lifetime:   Ranks share their state and may be destroyed in any order. Destroying a rank
//             aborts the group. A rank must not be destroyed during one of its operations.
class Communicator {
 public:
  static constexpr std::uint32_t kMaxRanks = 8;

  virtual ~Communicator() = default;
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  std::uint32_t rank() const { return rank_; }
  std::uint32_t size() const { return size_; }
  // Returns the backend whose stream and memory the operations use. Null if they use host memory.
  virtual const Backend* backend() const = 0;

  // Begins a step with `num_rows` rows. Later operations belong to this step. NcclCommunicator
  // returns INVALID_ARGUMENT on all ranks if their numbers of rows differ, or the status that was
  // passed to Abort. HostCommunicator returns OK, because each operation compares the sizes of all
  // ranks.
  virtual absl::Status BeginStep(std::uint32_t num_rows) = 0;

  // Computes values[i] = ((0 + values_0[i]) + values_1[i]) + ... over the ranks in order, in f32.
  // Allocates nothing if Reserve was called with at least this size. Returns the status that was
  // passed to Abort. HostCommunicator also returns INVALID_ARGUMENT on all ranks if operations or
  // sizes differ. `values` are unchanged in that case.
  virtual absl::Status AllReduceSum(std::span<float> values) = 0;

  // Concatenates `part` of all ranks in rank order into `all`. REQUIRES: all.size() == size() *
  // part.size(), and `part` and `all` do not overlap. Errors are those of AllReduceSum. `all` is
  // unchanged if there is an error.
  virtual absl::Status AllGather(std::span<const std::byte> part, std::span<std::byte> all) = 0;

  // Allocates memory for calls of AllReduceSum with up to `elements` values.
  virtual void Reserve(std::size_t elements) = 0;

  // Waits for an event on the stream of backend(), or until the group is aborted. An abort ends
  // this rank's pending operations without a result. Returns OK only if no operation was aborted.
  // HostCommunicator only waits for the event, because its operations are never pending.
  virtual absl::Status Wait(const Event& event) = 0;

  // Aborts the group. Current and later operations on every rank then return `why`. Only the first
  // call has an effect. A rank calls Abort if it cannot take part in an operation that other ranks
  // wait for. REQUIRES: !why.ok().
  virtual void Abort(const absl::Status& why) = 0;

 protected:
  Communicator(std::uint32_t rank, std::uint32_t size) : rank_(rank), size_(size) {}

 private:
  const std::uint32_t rank_;
  const std::uint32_t size_;
};

}  // namespace quire::kernels
