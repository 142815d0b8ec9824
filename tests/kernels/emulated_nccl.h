#pragma once

// NCCL as far as quire calls it, on the GPUs of the emulator. An operation waits on its stream
// until those of all ranks have reached it, and no host call blocks. Misuse that NCCL itself does
// not detect, such as different sizes or calls on aborted communicators, fails the test.

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

// Values of ncclResult_t.
inline constexpr NcclResult kNcclUnhandledCudaError = 1;
inline constexpr NcclResult kNcclRemoteError = 6;

// A fault that is injected once into the function's next call for a rank.
struct NcclFault {
  std::string function;  // "ncclCommInitAll", "ncclAllGather" or "ncclCommGetAsyncError"
  int rank = 0;
  NcclResult result = kNcclUnhandledCudaError;
  std::string detail;  // the result of ncclGetLastError from then on
};
void InjectNcclFault(const NcclFault& fault);

// Returns the number of communicators that were created and not aborted.
std::uint32_t NumNcclComms();

// A group of ranks, each with its own emulated GPU and backend. The emulator options get as many
// devices.
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
