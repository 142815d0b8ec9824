#pragma once

// The communicator within one process: a thread for each rank, over host memory, as the CPU backend
// has it.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/comm/communicator.h"

namespace quire::kernels {

// Invariants: a rank's operation returns when all ranks have taken part in it.
class HostCommunicator final : public Communicator {
 public:
  // One end for each rank, in their order. Returns INVALID_ARGUMENT unless 1 <= size <= kMaxRanks.
  static absl::StatusOr<std::vector<std::unique_ptr<HostCommunicator>>> CreateGroup(
      std::uint32_t size);
  ~HostCommunicator() override;

  const Backend* backend() const override { return nullptr; }
  // Nothing by itself: each operation compares its sizes.
  absl::Status BeginStep(std::uint32_t num_rows) override;
  absl::Status AllReduceSum(std::span<float> values) override;
  absl::Status AllGather(std::span<const std::byte> part, std::span<std::byte> all) override;
  void Reserve(std::size_t elements) override;
  absl::Status Wait(const Event& event) override;
  void Abort(const absl::Status& why) override;

  // Proves the invariants of the group's state. On any thread.
  absl::Status CheckIntegrity() const;

 private:
  class Group;
  HostCommunicator(std::shared_ptr<Group> group, std::uint32_t rank);

  const std::shared_ptr<Group> group_;
  std::vector<float> sum_;  // of AllReduceSum, while others read `values`
};

}  // namespace quire::kernels
