#pragma once

// The communicator between the GPUs of one machine. It uses NCCL and gives the same bits as
// HostCommunicator. It combines ncclAllGather, which only moves bytes, with SumRows, which adds the
// values of the ranks in rank order. ncclAllReduce is not used, because its algorithm, and
// therefore the order of its sums, depends on size and topology. Both operations are enqueued, so
// the host does not wait inside a step. This class has run only on emulated GPUs
// (tests/kernels/emulated_nccl.h).
//
// Steps of models on several GPUs are not captured as graphs. NCCL requires all ranks to capture
// and launch the same operations, and cannot abort a communicator that a graph uses. Its
// documentation warns of deadlocks if one process drives several GPUs.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/device_buffer.h"
#include "kernels/comm/communicator.h"
#include "kernels/comm/nccl_api.h"

namespace quire::kernels {

// Invariants: Only the rank's own thread uses and aborts the rank's NCCL communicator. Abort
//             records the status, and the other ranks see it at their next wait or call. NCCL does
//             not detect ranks with different sizes, so BeginStep compares the number of rows,
//             which determines all sizes.
// Threads:    CreateGroup on any thread; then one thread per rank with the device of its backend.
// Lifetime:   The backends outlive the communicators.
class NcclCommunicator final : public Communicator {
 public:
  static constexpr absl::string_view kLibrary = "libnccl.so.2";
  // Maximum number of elements of a sum that are gathered from each rank at once.
  static constexpr std::size_t kChunk = std::size_t{1} << 20;
  // Number of steps that a rank may begin ahead of the slowest rank.
  static constexpr std::uint64_t kStepsAhead = 4;

  using Ranks = std::vector<std::unique_ptr<NcclCommunicator>>;

  // Opens the library at run time. The library is never linked, because its size is hundreds of
  // megabytes. If the library or a function is missing, returns NOT_FOUND and names it.
  static absl::StatusOr<NcclApi> Open(absl::string_view library = kLibrary);

  // Returns one communicator per backend, in order. Runs the smallest and the largest gather, so
  // that NCCL sets up its resources here. NCCL's setup waits for all ranks and does not notice an
  // abort, so it must not run during a step. Leaves the last backend's device current. Returns
  // INVALID_ARGUMENT unless there are 1 to kMaxRanks backends of different GPUs. Returns
  // RESOURCE_EXHAUSTED if device memory cannot be allocated, and INTERNAL with NCCL's message for
  // other errors.
  static absl::StatusOr<Ranks> CreateGroup(std::span<const Backend* const> backends,
                                           const NcclApi& api);
  ~NcclCommunicator() override;

  const Backend* backend() const override { return backend_; }
  absl::Status BeginStep(std::uint32_t num_rows) override;
  absl::Status AllReduceSum(std::span<float> values) override;
  absl::Status AllGather(std::span<const std::byte> part, std::span<std::byte> all) override;
  // Does nothing, because sums use a buffer of kChunk elements per rank.
  void Reserve(std::size_t /*elements*/) override {}
  absl::Status Wait(const Event& event) override;
  void Abort(const absl::Status& why) override;

 private:
  class Group;
  NcclCommunicator(std::shared_ptr<Group> group, const Backend* backend, std::uint32_t rank);

  static absl::Status Connect(const Ranks& ranks);
  // Returns OK if `result` is success. Otherwise aborts the group with NCCL's message for `call`
  // and returns that status.
  absl::Status Check(NcclResult result, absl::string_view call);
  void AbortPending();

  const std::shared_ptr<Group> group_;
  const Backend* const backend_;
  NcclComm comm_ = nullptr;  // null once aborted
  DeviceBuffer parts_;       // [size, kChunk] f32
};

}  // namespace quire::kernels
