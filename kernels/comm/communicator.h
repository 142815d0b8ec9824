#pragma once

// How the devices that share one model exchange what each of them computed.

#include <cstddef>
#include <cstdint>
#include <span>

#include "absl/status/status.h"

namespace quire {
class Event;
}

namespace quire::kernels {

class Backend;

// One rank's end of a group. All ranks call the same operations in the same order with the same
// sizes. There are two forms: over host memory among the threads of a process
// (host_communicator.h), whose operations are done when they return, and over NCCL
// (nccl_communicator.h), whose operations are enqueued on a stream of the rank's GPU.
//
// Place:      made beside the backends of a model's ranks, called by runners and blocks.
// Invariants: what an operation computes depends on the ranks' arguments only, never on the order
//             in which they arrive, and is the same bit for bit on all of them. After the first
//             error no operation of the group succeeds, and no rank waits for another.
// Threads:    each rank's operations on one thread at a time; Abort on any.
// Lifetime:   ranks share their state and may go in any order; one that goes aborts the group. No
//             operation of a rank runs while it is destroyed.
class Communicator {
 public:
  static constexpr std::uint32_t kMaxRanks = 8;

  virtual ~Communicator() = default;
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  std::uint32_t rank() const { return rank_; }
  std::uint32_t size() const { return size_; }
  // On whose stream operations are enqueued, and whose memory they exchange; null: host memory.
  virtual const Backend* backend() const = 0;

  // A step of so many rows begins, whose operations follow. Returns INVALID_ARGUMENT on all ranks
  // when they differ in it, or what Abort was given.
  virtual absl::Status BeginStep(std::uint32_t num_rows) = 0;

  // values[i] = ((0 + values_0[i]) + values_1[i]) + ... over the ranks in their order, in f32.
  // Allocates nothing below Reserve. Returns what Abort was given, and, where operations are done
  // when they return, INVALID_ARGUMENT on all ranks when they differ in operation or size; `values`
  // are then as they were.
  virtual absl::Status AllReduceSum(std::span<float> values) = 0;

  // all = part of rank 0, part of rank 1, ... REQUIRES: all.size() == size() * part.size(), and the
  // two do not overlap. Errors as AllReduceSum; `all` is then as it was.
  virtual absl::Status AllGather(std::span<const std::byte> part, std::span<std::byte> all) = 0;

  // Memory for sums of this many elements.
  virtual void Reserve(std::size_t elements) = 0;

  // Waits for an event on the stream of backend(), or until the group is aborted: then this rank's
  // operations under way come to an end without a result. Returns OK only when none of them did.
  virtual absl::Status Wait(const Event& event) = 0;

  // Makes what waits or comes later on any rank return `why`; of several calls the first counts. A
  // rank that cannot take part in what the others wait for calls it. REQUIRES: !why.ok().
  virtual void Abort(const absl::Status& why) = 0;

 protected:
  Communicator(std::uint32_t rank, std::uint32_t size) : rank_(rank), size_(size) {}

 private:
  const std::uint32_t rank_;
  const std::uint32_t size_;
};

}  // namespace quire::kernels
