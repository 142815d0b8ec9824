#include "tools/bench/bench_cuda.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/time/time.h"
#include "base/check.h"
#include "base/device.h"
#include "base/device_graph.h"
#include "base/device_timer.h"

namespace quire::kernels {
namespace {

// Number of calls in a captured graph, on a real GPU.
constexpr int kLaunches = 20;

}  // namespace

Gpu::Gpu(Stream s, bool is_emulated)
    : stream(std::move(s)),
      pool(2),
      backend(*Backend::CreateCuda(stream, Determinism::kBatchInvariant, &pool)),
      emulated(is_emulated) {}

Gpu* Gpu::Get() {
  static const auto gpu = []() -> std::unique_ptr<Gpu> {
    const absl::StatusOr<Device> device = OpenCudaDevice(0);
    if (!device.ok()) return nullptr;
    absl::StatusOr<Stream> stream = Stream::Create(*device);
    QUIRE_CHECK(stream.ok());
    // The device name of the CUDA emulator contains this word.
    return std::make_unique<Gpu>(*std::move(stream), absl::StrContains(device->name, "emulated"));
  }();
  return gpu.get();
}

absl::StatusOr<DeviceBuffer> DeviceMemory(std::int64_t bytes) {
  return DeviceBuffer::Allocate(MemoryKind::kDevice, bytes);
}

absl::StatusOr<DeviceBuffer> Repeated(const Gpu& gpu, const void* from, std::int64_t bytes,
                                      std::int64_t total_bytes) {
  QUIRE_ASSIGN_OR_RETURN(DeviceBuffer buffer, DeviceMemory(total_bytes));
  auto* const to = static_cast<std::byte*>(buffer.data());
  QUIRE_RETURN_IF_ERROR(gpu.stream.Copy(to, from, bytes));
  for (std::int64_t filled = bytes; filled < total_bytes;) {
    const std::int64_t size = std::min(filled, total_bytes - filled);
    QUIRE_RETURN_IF_ERROR(gpu.stream.Copy(to + filled, to, size));
    filled += size;
  }
  QUIRE_RETURN_IF_ERROR(gpu.stream.Synchronize());
  return buffer;
}

std::size_t CopiesBeyondCache(const Gpu& gpu, std::int64_t bytes) {
  if (gpu.emulated) return 1;
  return static_cast<std::size_t>(std::clamp<std::int64_t>((256 << 20) / bytes, 1, kLaunches));
}

absl::Status Measure(benchmark::State& state, Gpu& gpu, Work work,
                     absl::FunctionRef<absl::Status(int)> enqueue) {
  const int launches = gpu.emulated ? 1 : kLaunches;
  for (int i = 0; i < launches; ++i) QUIRE_RETURN_IF_ERROR(enqueue(i));
  QUIRE_RETURN_IF_ERROR(gpu.stream.Synchronize());
  QUIRE_ASSIGN_OR_RETURN(DeviceTimer timer, DeviceTimer::Create(gpu.stream));
  QUIRE_ASSIGN_OR_RETURN(DeviceGraph graph, DeviceGraph::Capture(gpu.stream, [&]() -> absl::Status {
                           for (int i = 0; i < launches; ++i) QUIRE_RETURN_IF_ERROR(enqueue(i));
                           return absl::OkStatus();
                         }));
  QUIRE_RETURN_IF_ERROR(graph.Launch(gpu.stream));
  absl::Status status = gpu.stream.Synchronize();
  for (auto _ : state) {
    status.Update(timer.Start());
    status.Update(graph.Launch(gpu.stream));
    status.Update(timer.Stop());
    const absl::StatusOr<absl::Duration> time = timer.Elapsed();
    status.Update(time.status());
    state.SetIterationTime(time.ok() ? absl::ToDoubleSeconds(*time) / launches : 1);
  }
  const auto iterations = static_cast<double>(state.iterations());
  if (work.bytes > 0) state.SetBytesProcessed(static_cast<std::int64_t>(work.bytes * iterations));
  if (work.flops > 0) {
    state.counters["FLOP/s"] =
        benchmark::Counter(work.flops * iterations, benchmark::Counter::kIsRate);
  }
  return status;
}

void Report(benchmark::State& state, const absl::Status& status) {
  if (status.ok()) return;
  // tools/gpu_run/run.py recognizes "out of device memory" and "no tensor maps on this device" at
  // the start of an error.
  const std::string message(status.message());
  state.SkipWithError(absl::IsResourceExhausted(status)
                          ? ("out of device memory: " + message).c_str()
                      : absl::IsFailedPrecondition(status) ? message.c_str()
                                                           : status.ToString().c_str());
}

}  // namespace quire::kernels
