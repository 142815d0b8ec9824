#pragma once

// The communicator among GPUs of one machine, over NCCL, with the bits of the one over host memory:
// ncclAllGather, which moves bytes and computes nothing, and SumRows, which adds the parts in the
// order of ranks. ncclAllReduce will not do: it chooses its algorithm, and with it the order of
// sums, by size and topology. Both are enqueued, so that a step has no wait of the host inside. It
// has met emulated GPUs only (tests/kernels/emulated_nccl.h). Steps of divided models are not
// captured: NCCL wants graphs that all ranks capture and launch alike, does not abort a
// communicator that a graph holds, and warns of deadlocks where one process has several GPUs.

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

// Invariants: NCCL's communicator of a rank is used, and aborted, on the rank's thread only: Abort
//             leaves word, and the others find it when they wait or call. NCCL does not notice
//             ranks that differ in size, so BeginStep compares what sizes follow from.
// Threads:    CreateGroup on any; then a thread for each rank, whose device is that of its backend.
// Lifetime:   backends outlive it.
class NcclCommunicator final : public Communicator {
 public:
  static constexpr absl::string_view kLibrary = "libnccl.so.2";
  // Elements of a sum that are gathered at a time, of each rank.
  static constexpr std::size_t kChunk = std::size_t{1} << 20;
  // Steps that a rank may begin before another one does.
  static constexpr std::uint64_t kStepsAhead = 4;

  using Ranks = std::vector<std::unique_ptr<NcclCommunicator>>;

  // Opens the library, which has hundreds of megabytes and is never linked. Returns NOT_FOUND, with
  // its name, when it or a function of it is missing.
  static absl::StatusOr<NcclApi> Open(absl::string_view library = kLibrary);

  // One end for each backend, in their order, with its device memory. The smallest and the largest
  // gather have been made, so that NCCL has set up what they need; what it sets up for others waits
  // for all ranks, without looking whether the group has ended. Makes the last one's
  // device current. Returns INVALID_ARGUMENT unless there are 1 to kMaxRanks backends of different
  // GPUs; RESOURCE_EXHAUSTED without memory; INTERNAL with NCCL's words.
  static absl::StatusOr<Ranks> CreateGroup(std::span<const Backend* const> backends,
                                           const NcclApi& api);
  ~NcclCommunicator() override;

  const Backend* backend() const override { return backend_; }
  absl::Status BeginStep(std::uint32_t num_rows) override;
  absl::Status AllReduceSum(std::span<float> values) override;
  absl::Status AllGather(std::span<const std::byte> part, std::span<std::byte> all) override;
  // Nothing: sums go through a buffer of kChunk elements of each rank.
  void Reserve(std::size_t elements) override;
  absl::Status Wait(const Event& event) override;
  void Abort(const absl::Status& why) override;

 private:
  class Group;
  NcclCommunicator(std::shared_ptr<Group> group, const Backend* backend, std::uint32_t rank);

  // The first gathers of all ranks, of the smallest and of the largest size.
  static absl::Status Connect(const Ranks& ranks);
  // OK, or aborts the group with what NCCL says of `call`.
  absl::Status Check(NcclResult result, absl::string_view call);
  // Ends this rank's operations under way.
  void End();

  const std::shared_ptr<Group> group_;
  const Backend* const backend_;
  NcclComm comm_ = nullptr;  // null once ended; then the group is aborted
  DeviceBuffer parts_;       // [size, kChunk] f32
};

}  // namespace quire::kernels
