#pragma once

// The host emulation of kernels/cuda/launch.h, with the same names and contracts.

#include <cuda_runtime.h>

#include <cstdint>
#include <memory>
#include <tuple>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/cuda_status.h"
#include "base/status.h"
#include "base/stream.h"
#include "kernels/cuda/context.h"
#include "kernels/cuda/loaded_kernels.h"
#include "tests/cuda_emulator/launch.h"

namespace quire::kernels::cuda {

struct LaunchShape {
  std::uint32_t blocks_x = 1;
  std::uint32_t blocks_y = 1;
  std::uint32_t cluster_x = 1;
  std::uint32_t threads = 0;
  std::uint32_t shared_bytes = 0;
  bool programmatic = false;
};

template <typename... P>
absl::StatusOr<std::uint32_t> MaxBlocksPerSm(const CudaContext& context, const char* name,
                                             void (*kernel)(P...), const LaunchShape& shape) {
  return context.kernels->MaxBlocksPerSm(name, reinterpret_cast<const void*>(kernel), shape.threads,
                                         shape.shared_bytes);
}

template <typename... P>
struct Call {
  void (*kernel)(P...);
  std::tuple<P...> arguments;
};
template <typename... P>
void RunThread(const void* p) {
  const auto& call = *static_cast<const Call<P...>*>(p);
  std::apply(call.kernel, call.arguments);
}

template <typename... P, typename... A>
absl::Status Launch(const CudaContext& context, const char* name, void (*kernel)(P...),
                    const LaunchShape& shape, A&&... args) {
  if (shape.blocks_x == 0 || shape.blocks_y == 0) return absl::OkStatus();
  QUIRE_RETURN_IF_ERROR(
      context.kernels->Load(name, reinterpret_cast<const void*>(kernel), shape.shared_bytes));
  if (context.kernels->loads_only()) return absl::OkStatus();
  cuda_emulator::KernelLaunch launch{
      .name = name,
      .function = reinterpret_cast<const void*>(kernel),
      .blocks_x = shape.blocks_x,
      .blocks_y = shape.blocks_y,
      .cluster_x = shape.cluster_x,
      .threads = shape.threads,
      .shared_bytes = shape.shared_bytes,
      .programmatic = shape.programmatic && context.compute_capability == 90,
      .body = RunThread<P...>,
      .arguments = std::make_shared<const Call<P...>>(
          Call<P...>{kernel, std::tuple<P...>(P(static_cast<A&&>(args))...)}),
      .argument_bytes = sizeof(Call<P...>)};
  return CudaStatus(cuda_emulator::EnqueueKernel(context.stream->cuda(), std::move(launch)), name);
}

}  // namespace quire::kernels::cuda
