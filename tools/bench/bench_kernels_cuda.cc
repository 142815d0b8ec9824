// Measures the CUDA kernels and the roofline probes of the GPU in one process:
//
//   bench_kernels_cuda --benchmark_filter='DeviceCopy|BM_Attention'
//   bench_kernels_cuda --benchmark_filter=/tiny                   each op once, on any device
//   bench_kernels_cuda --device                                   describes the device as JSON
//
// bench_cuda.h describes the timing. Every benchmark has a shape named /tiny that is fast even on
// an emulated device.

#include <cstdio>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "base/device.h"
#include "base/device_buffer.h"
#include "base/stream.h"
#include "benchmark/benchmark.h"

namespace quire::kernels {
namespace {

// Prints the device as JSON. Runs an operation on it first, so that a lost GPU is detected. Returns
// the exit status, which is 77 if there is no GPU.
int PrintDevice() {
  const absl::StatusOr<Device> device = OpenCudaDevice(0);
  if (!device.ok()) {
    std::fprintf(stderr, "%s\n", std::string(device.status().message()).c_str());
    return 77;
  }
  absl::StatusOr<std::int64_t> free = FreeDeviceMemory(*device);
  absl::Status status = free.status();
  if (status.ok()) {
    const absl::StatusOr<Stream> stream = Stream::Create(*device);
    const auto memory = DeviceBuffer::Allocate(MemoryKind::kDevice, 4096);
    status = stream.status();
    status.Update(memory.status());
    if (status.ok()) status.Update(stream->Zero(memory->data(), 4096));
    if (status.ok()) status.Update(stream->Synchronize());
  }
  if (!status.ok()) {
    std::fprintf(stderr, "%s\n", std::string(status.message()).c_str());
    return 1;
  }
  std::printf(
      "{\"name\": \"%s\", \"compute_capability\": %d, \"num_sms\": %u, "
      "\"memory_bytes\": %lld, \"free_bytes\": %lld, \"driver_version\": %d}\n",
      device->name.c_str(), device->compute_capability, device->num_sms,
      static_cast<long long>(device->memory_bytes), static_cast<long long>(*free),
      device->driver_version);
  return 0;
}

}  // namespace
}  // namespace quire::kernels

int main(int argc, char** argv) {
  if (argc == 2 && absl::string_view(argv[1]) == "--device") return quire::kernels::PrintDevice();
  // Measures each shape for 50 ms, unless an argument sets another time.
  char time[] = "--benchmark_min_time=0.05";
  std::vector<char*> arguments(argv, argv + argc);
  arguments.insert(arguments.begin() + 1, time);
  int count = argc + 1;
  benchmark::Initialize(&count, arguments.data());
  if (benchmark::ReportUnrecognizedArguments(count, arguments.data())) return 1;
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}
