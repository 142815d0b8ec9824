#include "kernels/cuda/loaded_kernels.h"

#include <cuda_runtime_api.h>

#include "base/cuda_status.h"
#include "base/status.h"

namespace quire::kernels::cuda {

absl::Status LoadedKernels::Load(const char* name, const void* kernel, std::uint32_t shared_bytes) {
  Kernel& loaded = kernels_[kernel];
  if (loaded.shared_bytes != 0 && loaded.shared_bytes >= shared_bytes) return absl::OkStatus();
  if (shared_bytes > kDefaultSharedBytes) {
    QUIRE_RETURN_IF_ERROR(
        CudaStatus(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                        static_cast<int>(shared_bytes)),
                   name));
    loaded.shared_bytes = shared_bytes;
    return absl::OkStatus();
  }
  cudaFuncAttributes attributes{};
  QUIRE_RETURN_IF_ERROR(CudaStatus(cudaFuncGetAttributes(&attributes, kernel), name));
  loaded.shared_bytes = kDefaultSharedBytes;
  return absl::OkStatus();
}

absl::StatusOr<std::uint32_t> LoadedKernels::MaxBlocksPerSm(const char* name, const void* kernel,
                                                            std::uint32_t threads,
                                                            std::uint32_t shared_bytes) {
  QUIRE_RETURN_IF_ERROR(Load(name, kernel, shared_bytes));
  Kernel& loaded = kernels_[kernel];
  if (loaded.blocks_per_sm != 0) return loaded.blocks_per_sm;
  int blocks = 0;
  QUIRE_RETURN_IF_ERROR(CudaStatus(cudaOccupancyMaxActiveBlocksPerMultiprocessor(
                                       &blocks, kernel, static_cast<int>(threads), shared_bytes),
                                   name));
  loaded.blocks_per_sm = blocks < 1 ? 1u : static_cast<std::uint32_t>(blocks);
  return loaded.blocks_per_sm;
}

}  // namespace quire::kernels::cuda
