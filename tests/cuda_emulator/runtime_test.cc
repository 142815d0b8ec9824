// The emulated runtime itself: the time of deferred work, memory contents, and failing calls.

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstring>
#include <thread>

#include "tests/cuda_emulator/kernel_test.h"
#include "tests/cuda_emulator/tensor_map.h"

// Kernels, in their usual namespace.
namespace quire::kernels::cuda {
namespace {

using cuda_emulator::AllocationCount;
using cuda_emulator::DeviceArray;
using cuda_emulator::DeviceBytesAllocated;
using cuda_emulator::EmulatorOptions;
using cuda_emulator::EncodeTiled;
using cuda_emulator::EnqueueOperation;
using cuda_emulator::GetOptions;
using cuda_emulator::InjectFault;
using cuda_emulator::KernelTest;
using cuda_emulator::PinnedBytesEverAllocated;
using cuda_emulator::QueuedOperations;
using cuda_emulator::Reset;
using cuda_emulator::SetOptions;

class RuntimeTest : public KernelTest {
 protected:
  cudaStream_t stream() const { return stream_->cuda(); }
};

__global__ void Add(std::uint32_t* p, std::uint32_t x) {
  *p += x;
}

TEST_F(RuntimeTest, WorkRunsWhenTheHostWaits) {
  const DeviceArray<std::uint32_t> value(1);
  ASSERT_TRUE(Launch(context_, "add", Add, {.threads = 1}, value.data(), 5u).ok());
  EXPECT_EQ(value[0], 0u);
  EXPECT_EQ(QueuedOperations(), 1u);
  EXPECT_EQ(cudaStreamQuery(stream()), cudaErrorNotReady);  // polling makes progress
  EXPECT_EQ(cudaStreamQuery(stream()), cudaSuccess);
  EXPECT_EQ(value[0], 5u);

  EmulatorOptions options = GetOptions();
  options.deferred = false;
  SetOptions(options);
  ASSERT_TRUE(Launch(context_, "add", Add, {.threads = 1}, value.data(), 5u).ok());
  EXPECT_EQ(value[0], 10u);
}

TEST_F(RuntimeTest, DefaultStreamDoesNotWaitForOthers) {
  const DeviceArray<std::uint32_t> value(1);
  ASSERT_TRUE(Launch(context_, "add", Add, {.threads = 1}, value.data(), 5u).ok());
  std::uint32_t host = 9;
  ASSERT_EQ(cudaMemcpy(&host, value.data(), 4, cudaMemcpyDeviceToHost), cudaSuccess);
  EXPECT_EQ(host, 0u);
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  ASSERT_EQ(cudaMemcpy(&host, value.data(), 4, cudaMemcpyDefault), cudaSuccess);
  EXPECT_EQ(host, 5u);
}

TEST_F(RuntimeTest, CountsAllocationsAndFrees) {
  const std::uint64_t before = AllocationCount();
  const std::uint64_t pinned_before = PinnedBytesEverAllocated();
  void *device = nullptr, *pinned = nullptr, *none = nullptr;
  ASSERT_EQ(cudaMalloc(&device, 1), cudaSuccess);
  EXPECT_EQ(AllocationCount() - before, 1u);
  ASSERT_EQ(cudaMallocHost(&pinned, 1), cudaSuccess);
  EXPECT_EQ(AllocationCount() - before, 2u);
  // Calls that neither allocate nor free are not counted.
  ASSERT_EQ(cudaMalloc(&none, 0), cudaSuccess);
  EXPECT_EQ(cudaMalloc(&none, std::size_t{1} << 40), cudaErrorMemoryAllocation);
  EXPECT_EQ(cudaFree(nullptr), cudaSuccess);
  EXPECT_EQ(cudaFree(pinned), cudaErrorInvalidValue);
  EXPECT_EQ(AllocationCount() - before, 2u);
  ASSERT_EQ(cudaFreeHost(pinned), cudaSuccess);
  ASSERT_EQ(cudaFree(device), cudaSuccess);
  EXPECT_EQ(AllocationCount() - before, 4u);
  EXPECT_EQ(PinnedBytesEverAllocated() - pinned_before, 1u);
}

TEST_F(RuntimeTest, MemoryIsNaNBoundedAndCounted) {
  const std::uint64_t before = DeviceBytesAllocated();
  void* p = nullptr;
  ASSERT_EQ(cudaMalloc(&p, 1000), cudaSuccess);
  EXPECT_EQ(static_cast<unsigned char*>(p)[999], 0xff);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(p) % 256, 0u);
  EXPECT_EQ(DeviceBytesAllocated() - before, 1024u);
  EXPECT_EQ(cudaMemsetAsync(p, 0, 1001, stream()), cudaErrorInvalidValue);
  char host[8] = {};
  EXPECT_EQ(cudaMemcpy(p, host, 1001, cudaMemcpyHostToDevice), cudaErrorInvalidValue);
  EXPECT_EQ(cudaMemcpy(p, host, 8, cudaMemcpyDeviceToHost), cudaErrorInvalidValue);
  EXPECT_EQ(cudaFreeHost(p), cudaErrorInvalidValue);
  EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidValue);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
  EXPECT_EQ(cudaFree(p), cudaSuccess);
  EXPECT_EQ(cudaFree(p), cudaErrorInvalidValue);
  EXPECT_EQ(DeviceBytesAllocated(), before);
}

TEST_F(RuntimeTest, RowsOfBytes) {
  const DeviceArray<char> to(64);
  char from[24];
  for (int i = 0; i < 24; ++i) from[i] = static_cast<char>(i);
  ASSERT_EQ(cudaMemcpy2DAsync(to.data(), 16, from, 8, 4, 3, cudaMemcpyHostToDevice, stream()),
            cudaSuccess);
  std::memset(from, 0, sizeof(from));  // pageable memory was read already
  ASSERT_EQ(cudaStreamSynchronize(stream()), cudaSuccess);
  for (std::size_t row = 0; row < 3; ++row) {
    EXPECT_EQ(to[row * 16 + 3], static_cast<char>(row * 8 + 3));
    EXPECT_EQ(to[row * 16 + 4], 0);
  }
  EXPECT_EQ(cudaMemcpy2DAsync(to.data(), 16, from, 8, 17, 1, cudaMemcpyHostToDevice, stream()),
            cudaSuccess);  // one row has no pitch
  EXPECT_EQ(cudaMemcpy2DAsync(to.data(), 16, from, 2, 4, 3, cudaMemcpyHostToDevice, stream()),
            cudaErrorInvalidValue);
  EXPECT_EQ(cudaMemcpy2DAsync(to.data(), 32, from, 8, 4, 3, cudaMemcpyHostToDevice, stream()),
            cudaErrorInvalidValue);  // ends 4 bytes after the block
}

TEST_F(RuntimeTest, EventsOrderStreams) {
  const DeviceArray<std::uint32_t> value(1);
  cudaStream_t other = nullptr;
  cudaEvent_t event = nullptr;
  ASSERT_EQ(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking), cudaSuccess);
  ASSERT_EQ(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), cudaSuccess);
  EXPECT_EQ(cudaEventQuery(event), cudaSuccess);  // nothing was recorded
  ASSERT_TRUE(Launch(context_, "add", Add, {.threads = 1}, value.data(), 5u).ok());
  ASSERT_EQ(cudaEventRecord(event, stream()), cudaSuccess);
  ASSERT_TRUE(Launch(context_, "add", Add, {.threads = 1}, value.data(), 7u).ok());
  ASSERT_EQ(cudaStreamWaitEvent(other, event, 0), cudaSuccess);
  const DeviceArray<std::uint32_t> copy(1);
  ASSERT_EQ(cudaMemcpyAsync(copy.data(), value.data(), 4, cudaMemcpyDefault, other), cudaSuccess);
  ASSERT_EQ(cudaStreamSynchronize(other), cudaSuccess);
  EXPECT_EQ(copy[0], 5u);   // the work before the event has run
  EXPECT_EQ(value[0], 5u);  // and no more
  EXPECT_EQ(cudaEventSynchronize(event), cudaSuccess);
  EXPECT_EQ(cudaStreamDestroy(other), cudaSuccess);
  EXPECT_EQ(cudaStreamSynchronize(other), cudaErrorInvalidResourceHandle);
  EXPECT_EQ(cudaEventDestroy(event), cudaSuccess);
}

// An operation that is not ready blocks its stream and the streams that wait for a later event of
// it, also inside a graph.
TEST_F(RuntimeTest, WaitingOperationBlocksOnlyItsStream) {
  const DeviceArray<std::uint32_t> value(1);
  cudaStream_t other = nullptr;
  cudaEvent_t event = nullptr;
  ASSERT_EQ(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking), cudaSuccess);
  ASSERT_EQ(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), cudaSuccess);
  bool is_open = false;  // accessed by operations only
  const auto wait = [&] { return is_open ? cudaSuccess : cudaErrorNotReady; };
  for (const bool as_graph : {false, true}) {
    is_open = false;
    value[0] = 0;
    if (as_graph) {
      cudaGraph_t graph = nullptr;
      cudaGraphExec_t exec = nullptr;
      ASSERT_EQ(cudaStreamBeginCapture(stream(), cudaStreamCaptureModeThreadLocal), cudaSuccess);
      ASSERT_EQ(EnqueueOperation(stream(), wait), cudaSuccess);
      ASSERT_TRUE(Launch(context_, "add", Add, {.threads = 1}, value.data(), 5u).ok());
      ASSERT_EQ(cudaStreamEndCapture(stream(), &graph), cudaSuccess);
      ASSERT_EQ(cudaGraphInstantiate(&exec, graph, 0), cudaSuccess);
      ASSERT_EQ(cudaGraphLaunch(exec, stream()), cudaSuccess);
      EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
      EXPECT_EQ(cudaGraphExecDestroy(exec), cudaSuccess);
    } else {
      ASSERT_EQ(EnqueueOperation(stream(), wait), cudaSuccess);
      ASSERT_TRUE(Launch(context_, "add", Add, {.threads = 1}, value.data(), 5u).ok());
    }
    ASSERT_EQ(cudaEventRecord(event, stream()), cudaSuccess);
    for (int i = 0; i < 5; ++i) EXPECT_EQ(cudaEventQuery(event), cudaErrorNotReady);
    EXPECT_EQ(value[0], 0u);
    std::thread waiting([&] { EXPECT_EQ(cudaStreamSynchronize(stream()), cudaSuccess); });
    ASSERT_EQ(EnqueueOperation(other,
                               [&] {
                                 is_open = true;
                                 return cudaSuccess;
                               }),
              cudaSuccess);
    EXPECT_EQ(cudaStreamSynchronize(other), cudaSuccess);
    waiting.join();
    EXPECT_EQ(value[0], 5u);
    EXPECT_EQ(cudaEventQuery(event), cudaSuccess);
  }
  EXPECT_EQ(cudaEventDestroy(event), cudaSuccess);
  EXPECT_EQ(cudaStreamDestroy(other), cudaSuccess);
}

TEST_F(RuntimeTest, DevicesHaveSeparateStreams) {
  EmulatorOptions options = GetOptions();
  options.num_devices = 2;
  SetOptions(options);
  const DeviceArray<std::uint32_t> value(1);
  cudaStream_t second = nullptr;
  ASSERT_EQ(cudaSetDevice(1), cudaSuccess);
  ASSERT_EQ(cudaStreamCreateWithFlags(&second, cudaStreamNonBlocking), cudaSuccess);
  const absl::Status elsewhere = Launch(context_, "add", Add, {.threads = 1}, value.data(), 5u);
  EXPECT_NE(elsewhere.message().find("invalid resource handle"), absl::string_view::npos)
      << elsewhere;
  ASSERT_EQ(cudaMemsetAsync(value.data(), 1, 4, second), cudaSuccess);
  ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
  ASSERT_TRUE(Launch(context_, "add", Add, {.threads = 1}, value.data(), 5u).ok());
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  EXPECT_EQ(value[0], 5u);
  // The other device may wait for work that this one does next.
  bool is_open = false;
  const auto open = [&] {
    is_open = true;
    return cudaSuccess;
  };
  const auto wait = [&] { return is_open ? cudaSuccess : cudaErrorNotReady; };
  ASSERT_EQ(EnqueueOperation(second, wait), cudaSuccess);
  ASSERT_EQ(EnqueueOperation(stream(), open), cudaSuccess);
  EXPECT_EQ(cudaStreamSynchronize(second), cudaSuccess);
  EXPECT_EQ(value[0], 0x01010101u);
  EXPECT_EQ(QueuedOperations(), 0u);
  EXPECT_EQ(cudaStreamDestroy(second), cudaSuccess);
}

TEST_F(RuntimeTest, CapturesForbidTheSameCallsAsTheRuntime) {
  const DeviceArray<std::uint32_t> value(1);
  cudaGraph_t graph = nullptr;
  void* p = nullptr;
  ASSERT_EQ(cudaStreamBeginCapture(stream(), cudaStreamCaptureModeThreadLocal), cudaSuccess);
  // Another thread may allocate meanwhile.
  std::thread([&] { EXPECT_EQ(cudaMalloc(&p, 16), cudaSuccess); }).join();
  EXPECT_EQ(cudaFree(nullptr), cudaSuccess);
  EXPECT_EQ(cudaStreamSynchronize(stream()), cudaErrorStreamCaptureUnsupported);
  EXPECT_EQ(cudaMemsetAsync(value.data(), 0, 4, stream()), cudaErrorStreamCaptureInvalidated);
  EXPECT_EQ(cudaStreamEndCapture(stream(), &graph), cudaErrorStreamCaptureInvalidated);
  EXPECT_EQ(graph, nullptr);
  EXPECT_EQ(cudaStreamEndCapture(stream(), &graph), cudaErrorIllegalState);
  EXPECT_EQ(cudaStreamSynchronize(stream()), cudaSuccess);
  EXPECT_EQ(cudaFree(p), cudaSuccess);

  ASSERT_EQ(cudaStreamBeginCapture(stream(), cudaStreamCaptureModeGlobal), cudaSuccess);
  EXPECT_EQ(cudaMalloc(&p, 16), cudaErrorStreamCaptureUnsupported);
  EXPECT_EQ(cudaStreamEndCapture(stream(), &graph), cudaErrorStreamCaptureInvalidated);
}

TEST_F(RuntimeTest, ReportsTheConfiguredDevice) {
  EmulatorOptions options = GetOptions();
  options.compute_capability = 80;
  options.num_sms = 7;
  options.memory_bytes = 1 << 20;
  SetOptions(options);
  cudaDeviceProp properties;
  ASSERT_EQ(cudaGetDeviceProperties(&properties, 0), cudaSuccess);
  EXPECT_STREQ(properties.name, "emulated sm_80 device");
  EXPECT_EQ(properties.multiProcessorCount, 7);
  int value = 0;
  ASSERT_EQ(cudaDeviceGetAttribute(&value, cudaDevAttrComputeCapabilityMajor, 0), cudaSuccess);
  EXPECT_EQ(value, 8);
  EXPECT_EQ(cudaGetDeviceProperties(&properties, 1), cudaErrorInvalidDevice);
  void* p = nullptr;
  EXPECT_EQ(cudaMalloc(&p, (1 << 20) + 1), cudaErrorMemoryAllocation);
  EXPECT_STREQ(cudaGetErrorName(cudaErrorMemoryAllocation), "cudaErrorMemoryAllocation");
  EXPECT_STREQ(cudaGetErrorString(cudaErrorMemoryAllocation), "out of memory");
}

TEST_F(RuntimeTest, DriverEntryPoints) {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult result;
  ASSERT_EQ(
      cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000, 0, &result),
      cudaSuccess);
  EXPECT_EQ(result, cudaDriverEntryPointSuccess);
  EXPECT_EQ(function, reinterpret_cast<void*>(&EncodeTiled));
  EXPECT_EQ(cudaGetDriverEntryPointByVersion("cuNothing", &function, 12000, 0, &result),
            cudaErrorSymbolNotFound);
  EXPECT_EQ(function, nullptr);
}

TEST_F(RuntimeTest, FaultsAreInjectedOnce) {
  void* p = nullptr;
  InjectFault({.where = "cudaMalloc", .error = cudaErrorMemoryAllocation, .after = 1});
  ASSERT_EQ(cudaMalloc(&p, 16), cudaSuccess);
  void* none = p;
  EXPECT_EQ(cudaMalloc(&none, 16), cudaErrorMemoryAllocation);
  EXPECT_EQ(cudaFree(p), cudaSuccess);

  const DeviceArray<std::uint32_t> value(1);
  InjectFault({.where = "kernel:add", .error = cudaErrorIllegalAddress});
  EXPECT_TRUE(Launch(context_, "add", Add, {.threads = 1}, value.data(), 5u).ok());
  EXPECT_EQ(cudaStreamSynchronize(stream()), cudaErrorIllegalAddress);
  EXPECT_EQ(value[0], 0u);
  EXPECT_EQ(cudaMalloc(&p, 16), cudaErrorIllegalAddress);
  EXPECT_EQ(cudaGetLastError(), cudaErrorIllegalAddress);
  Reset();
  EXPECT_EQ(cudaStreamSynchronize(stream()), cudaSuccess);
}

}  // namespace
}  // namespace quire::kernels::cuda
