#pragma once

#include <optional>

#include "tests/cuda_emulator/emulator.h"
#include "tests/kernels/linear_cuda_fixture.h"

namespace quire::kernels {

// A device of capability 8.0 that selects the portable kernels. It is not available on a real GPU.
class PortableDevice {
 public:
  PortableDevice() {
    cuda_emulator::EmulatorOptions options = cuda_emulator::GetOptions();
    options.compute_capability = 80;
    cuda_emulator::SetOptions(options);
    cuda_.emplace();
  }
  ~PortableDevice() {
    cuda_.reset();
    cuda_emulator::Reset();
  }
  const CudaBackend& operator*() const { return *cuda_; }

 private:
  std::optional<CudaBackend> cuda_;
};

}  // namespace quire::kernels
