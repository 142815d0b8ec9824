#pragma once

// NCCL, as far as quire calls it, over the GPUs of the emulator: an operation lies on its stream
// until those of all ranks are at it, while no call of the host waits. Misuse that NCCL itself does
// not notice, as sizes that differ or calls on what was aborted, fails the test.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/stream.h"
#include "base/thread_pool.h"
#include "kernels/backend/backend.h"
#include "kernels/comm/nccl_api.h"
#include "kernels/comm/nccl_communicator.h"

namespace quire::kernels {

NcclApi EmulatedNccl();

// Of ncclResult_t.
inline constexpr NcclResult kNcclUnhandledCudaError = 1;
inline constexpr NcclResult kNcclRemoteError = 6;

// A failure to come, once, of the function's next call for a rank.
struct NcclFault {
  std::string function;  // "ncclCommInitAll", "ncclAllGather" or "ncclCommGetAsyncError"
  int rank = 0;
  NcclResult result = kNcclUnhandledCudaError;
  std::string detail;  // what ncclGetLastError says from then on
};
void InjectNcclFault(const NcclFault& fault);

// Communicators that were made and not aborted.
std::uint32_t NumNcclComms();

// A group of ranks, each with an emulated GPU and a backend of its own. The options of the emulator
// get as many devices.
class EmulatedRanks {
 public:
  explicit EmulatedRanks(std::uint32_t size);
  ~EmulatedRanks();

  std::uint32_t size() const { return static_cast<std::uint32_t>(gpus_.size()); }
  const Backend& backend(std::uint32_t rank) const { return *gpus_[rank]->backend; }
  NcclCommunicator& comm(std::uint32_t rank) const { return *comms_[rank]; }
  void Leave(std::uint32_t rank) { comms_[rank].reset(); }

 private:
  struct Gpu {
    std::unique_ptr<ThreadPool> pool;
    std::unique_ptr<Stream> stream;
    std::unique_ptr<Backend> backend;
  };
  std::vector<std::unique_ptr<Gpu>> gpus_;
  NcclCommunicator::Ranks comms_;
};

}  // namespace quire::kernels
