#pragma once

// The communicator of the CPU backend. It connects the threads of one process, one thread per rank,
// through host memory.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/comm/communicator.h"

namespace quire::kernels {

// Invariants: an operation of a rank returns after all ranks have called it, or after an abort.
class HostCommunicator final : public Communicator {
 public:
  // Returns one communicator per rank, in order. Returns INVALID_ARGUMENT unless 1 <= size <=
  // kMaxRanks.
  static absl::StatusOr<std::vector<std::unique_ptr<HostCommunicator>>> CreateGroup(
      std::uint32_t size);
  ~HostCommunicator() override;

  const Backend* backend() const override { return nullptr; }
  absl::Status BeginStep(std::uint32_t /*num_rows*/) override { return absl::OkStatus(); }
  absl::Status AllReduceSum(std::span<float> values) override;
  absl::Status AllGather(std::span<const std::byte> part, std::span<std::byte> all) override;
  void Reserve(std::size_t elements) override;
  absl::Status Wait(const Event& event) override;
  void Abort(const absl::Status& why) override;

  // Checks the invariants of the group's state. May run on any thread.
  absl::Status CheckIntegrity() const;

 private:
  class Group;
  HostCommunicator(std::shared_ptr<Group> group, std::uint32_t rank);

  const std::shared_ptr<Group> group_;
  std::vector<float> sum_;  // result of AllReduceSum until all ranks have read each other's values
};

}  // namespace quire::kernels
