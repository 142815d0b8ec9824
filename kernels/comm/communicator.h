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
// HostCommunicator exchanges host memory between threads of one process; its operations are
// complete when they return. NcclCommunicator uses NCCL; its operations are enqueued on a stream of
// the rank's GPU.
//
// Place:      created together with the backends of a model's ranks; used by runners and blocks.
// Invariants: The result of an operation depends on the ranks' arguments only, never on their
//             arrival order, and is the same bit for bit on all ranks. After the first error every
//             operation of the group fails, and no rank waits for another.
// Threads:    Each rank's operations run on one thread at a time; Abort runs on any thread.
// Lifetime:   Ranks share their state and may be destroyed in any order; destroying a rank
//             aborts the group. No operation of a rank runs while it is destroyed.
class Communicator {
 public:
  static constexpr std::uint32_t kMaxRanks = 8;

  virtual ~Communicator() = default;
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  std::uint32_t rank() const { return rank_; }
  std::uint32_t size() const { return size_; }
  // The backend whose stream and memory the operations use. Null if they use host memory.
  virtual const Backend* backend() const = 0;

  // Begins a step with `num_rows` rows. The operations of the step follow. Returns INVALID_ARGUMENT
  // on all ranks if the numbers differ, or the status that was passed to Abort.
  virtual absl::Status BeginStep(std::uint32_t num_rows) = 0;

  // Computes values[i] = ((0 + values_0[i]) + values_1[i]) + ... over the ranks in order, in f32.
  // Allocates nothing if the size was reserved. Returns the status that was passed to Abort.
  // HostCommunicator also returns INVALID_ARGUMENT on all ranks if operations or sizes differ;
  // `values` are then unchanged.
  virtual absl::Status AllReduceSum(std::span<float> values) = 0;

  // Concatenates the parts: all = part of rank 0, part of rank 1, and so on. REQUIRES: all.size()
  // == size() * part.size(), and the two do not overlap. Errors are those of AllReduceSum; `all` is
  // then unchanged.
  virtual absl::Status AllGather(std::span<const std::byte> part, std::span<std::byte> all) = 0;

  // Allocates memory for sums of this many elements.
  virtual void Reserve(std::size_t elements) = 0;

  // Waits for an event on the stream of backend(), or until the group is aborted. An abort ends
  // this rank's pending operations without a result. Returns OK only if no operation was aborted.
  virtual absl::Status Wait(const Event& event) = 0;

  // Makes current and later calls on every rank return `why`; only the first call has an effect. A
  // rank calls Abort if it cannot take part in an operation that other ranks wait for. REQUIRES:
  // !why.ok().
  virtual void Abort(const absl::Status& why) = 0;

 protected:
  Communicator(std::uint32_t rank, std::uint32_t size) : rank_(rank), size_(size) {}

 private:
  const std::uint32_t rank_;
  const std::uint32_t size_;
};

}  // namespace quire::kernels
