#pragma once

// How the devices that share one model exchange what each of them computed.
//
// This is the form within one process: a thread for each rank, over host memory, as the CPU backend
// has it. A form over NCCL would promise the same bits by the same means: ncclAllGather, which
// moves bytes and computes nothing, and a kernel that adds the parts in the order of ranks.
// ncclAllReduce will not do: it chooses its algorithm, and with it the order of sums, by size and
// topology.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace quire::kernels {

// One rank's end of a group. All ranks call the same operations in the same order with the same
// sizes; each call returns when all ranks have taken part in it.
//
// Place:      made beside the backends of a model's ranks, called by the blocks of models/.
// Invariants: what an operation computes depends on the ranks' arguments only, never on the order
//             in which they arrive, and is the same bit for bit on all of them. After the first
//             error no operation of the group succeeds, and no rank waits for another.
// Threads:    each rank's operations on one thread at a time; Abort and CheckIntegrity on any.
// Lifetime:   ranks share their state and may go in any order; one that goes aborts the group. No
//             operation of a rank runs while it is destroyed.
class Communicator {
 public:
  static constexpr std::uint32_t kMaxRanks = 8;

  // One end for each rank, in their order. Returns INVALID_ARGUMENT unless 1 <= size <= kMaxRanks.
  static absl::StatusOr<std::vector<std::unique_ptr<Communicator>>> CreateGroup(std::uint32_t size);
  ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  std::uint32_t rank() const { return rank_; }
  std::uint32_t size() const;

  // values[i] = ((values_0[i] + values_1[i]) + values_2[i]) + ... over the ranks in their order, in
  // f32. Allocates when `values` has more elements than before (Reserve). Returns INVALID_ARGUMENT
  // on all ranks when they differ in operation or size, or what Abort was given; `values` are then
  // as they were.
  absl::Status AllReduceSum(std::span<float> values);

  // all = part of rank 0, part of rank 1, ... REQUIRES: all.size() == size() * part.size(), and the
  // two do not overlap. Errors as AllReduceSum; `all` is then as it was.
  absl::Status AllGather(std::span<const std::byte> part, std::span<std::byte> all);

  // Memory for sums of this many elements.
  void Reserve(std::size_t elements);

  // Makes what waits or comes later on any rank return `why`; of several calls the first counts. A
  // rank that cannot take part in what the others wait for calls it. REQUIRES: !why.ok().
  void Abort(const absl::Status& why);

  // Proves the invariants of the group's state.
  absl::Status CheckIntegrity() const;

 private:
  class Group;
  Communicator(std::shared_ptr<Group> group, std::uint32_t rank);

  const std::shared_ptr<Group> group_;
  const std::uint32_t rank_;
  std::vector<float> sum_;  // of AllReduceSum, while others read `values`
};

}  // namespace quire::kernels
