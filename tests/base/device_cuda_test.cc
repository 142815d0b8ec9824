// The device layer on an emulated GPU: errors, the time of copies, captured work, and lost devices.

#include <cuda_runtime_api.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "base/cuda_status.h"
#include "base/device.h"
#include "base/device_buffer.h"
#include "base/device_graph.h"
#include "base/device_timer.h"
#include "base/error_reason.h"
#include "base/stream.h"
#include "tests/cuda_emulator/emulator.h"

namespace quire {
namespace {

using cuda_emulator::EmulatorOptions;
using cuda_emulator::InjectFault;
using ::testing::AllOf;
using ::testing::HasSubstr;

class DeviceCudaTest : public ::testing::Test {
 protected:
  DeviceCudaTest() { cuda_emulator::Reset(); }
  ~DeviceCudaTest() override { cuda_emulator::Reset(); }

  static void Set(void (*change)(EmulatorOptions&)) {
    EmulatorOptions options = cuda_emulator::GetOptions();
    change(options);
    cuda_emulator::SetOptions(options);
  }
  // Expects an error and returns its message.
  static std::string Refusal(std::int32_t ordinal = 0) {
    const absl::Status status = OpenCudaDevice(ordinal).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
    return std::string(status.message());
  }
  static DeviceBuffer Make(MemoryKind kind, std::int64_t bytes) {
    return DeviceBuffer::Allocate(kind, bytes).value();
  }
};

TEST_F(DeviceCudaTest, OpensTheExistingDevice) {
  Set([](EmulatorOptions& o) {
    o.num_sms = 5;
    o.memory_bytes = 3 << 20;
  });
  const auto device = OpenCudaDevice(0);
  ASSERT_TRUE(device.ok()) << device.status();
  EXPECT_TRUE(HasCuda());
  EXPECT_FALSE(device->is_cpu());
  EXPECT_EQ(device->name, "emulated sm_90 device");
  EXPECT_EQ(device->compute_capability, 90);
  EXPECT_EQ(device->driver_version, 13000);
  EXPECT_EQ(device->num_sms, 5u);
  EXPECT_EQ(device->memory_bytes, 3 << 20);
  const std::int64_t before = FreeDeviceMemory(*device).value();
  const DeviceBuffer buffer = Make(MemoryKind::kDevice, 1 << 20);
  EXPECT_EQ(FreeDeviceMemory(*device).value(), before - (1 << 20));
  EXPECT_TRUE(UseDevice(Device::Cpu()).ok());
}

TEST_F(DeviceCudaTest, RejectsWithFigures) {
  Set([](EmulatorOptions& o) { o.driver_version = 0; });
  EXPECT_EQ(Refusal(), "no CUDA driver is installed; this build needs a driver for CUDA 13.0");
  Set([](EmulatorOptions& o) { o.driver_version = 12040; });
  EXPECT_EQ(Refusal(), "the CUDA driver supports CUDA 12.4; this build needs at least 13.0");
  Set([](EmulatorOptions& o) {
    o.driver_version = 13010;
    o.num_devices = 0;
  });
  EXPECT_EQ(Refusal(), "CUDA device 0 does not exist; this machine has 0 devices");
  Set([](EmulatorOptions& o) { o.num_devices = 2; });
  EXPECT_EQ(Refusal(2), "CUDA device 2 does not exist; this machine has 2 devices");
  EXPECT_EQ(Refusal(-1), "CUDA device -1 does not exist; this machine has 2 devices");
  EXPECT_TRUE(OpenCudaDevice(1).ok());
  Set([](EmulatorOptions& o) { o.compute_capability = 75; });
  EXPECT_EQ(Refusal(),
            "CUDA device 0 (emulated sm_75 device) has compute capability 7.5; this build needs "
            "at least 8.0");
}

TEST_F(DeviceCudaTest, PassesOnRuntimeErrors) {
  for (const char* call :
       {"cudaDriverGetVersion", "cudaGetDeviceCount", "cudaGetDeviceProperties", "cudaSetDevice"}) {
    InjectFault({.where = call, .error = cudaErrorSystemNotReady});
    EXPECT_THAT(Refusal(), AllOf(HasSubstr("cudaErrorSystemNotReady"),
                                 HasSubstr("system not yet initialized")))
        << call;
    InjectFault({.where = call, .error = cudaErrorNotSupported});
    EXPECT_EQ(OpenCudaDevice(0).status().code(), absl::StatusCode::kInternal) << call;
  }
  const Device device = OpenCudaDevice(0).value();
  for (const char* call : {"cudaStreamCreateWithFlags", "cudaSetDevice"}) {
    InjectFault({.where = call, .error = cudaErrorNotSupported});
    EXPECT_EQ(Stream::Create(device).status().code(), absl::StatusCode::kInternal);
  }
  InjectFault({.where = "cudaEventCreateWithFlags", .error = cudaErrorNotSupported});
  EXPECT_EQ(Event::Create(device).status().code(), absl::StatusCode::kInternal);
  InjectFault({.where = "cudaMemGetInfo", .error = cudaErrorNotSupported});
  EXPECT_EQ(FreeDeviceMemory(device).status().code(), absl::StatusCode::kInternal);
  EXPECT_EQ(cudaPeekAtLastError(), cudaSuccess);  // no error is left for later calls
}

TEST_F(DeviceCudaTest, ErrorsByKind) {
  EXPECT_TRUE(CudaStatus(cudaSuccess, "x").ok());
  EXPECT_EQ(CudaStatus(cudaErrorMemoryAllocation, "pool"),
            absl::ResourceExhaustedError("pool: cudaErrorMemoryAllocation, out of memory"));
  EXPECT_EQ(CudaStatus(cudaErrorNoDevice, "x").code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(CudaStatus(cudaErrorInvalidValue, "x").code(), absl::StatusCode::kInternal);
  for (const cudaError_t error : {cudaErrorIllegalAddress, cudaErrorECCUncorrectable,
                                  cudaErrorLaunchFailure, cudaErrorMisalignedAddress}) {
    const absl::Status status = CudaStatus(error, "step");
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
    EXPECT_TRUE(HasReason(status, Reason::kDeviceLost));
    EXPECT_EQ(GetErrorReason(status)->name(), "DEVICE_LOST");
  }
  EXPECT_FALSE(HasReason(CudaStatus(cudaErrorInvalidValue, "x"), Reason::kDeviceLost));
  // A restart may find the device ready, so the daemon must not exit as for a missing one.
  for (const cudaError_t error : {cudaErrorSystemNotReady, cudaErrorDevicesUnavailable}) {
    EXPECT_TRUE(HasReason(CudaStatus(error, "x"), Reason::kDeviceError));
  }
  EXPECT_FALSE(GetErrorReason(CudaStatus(cudaErrorNoDevice, "x")));
  EXPECT_FALSE(HasReason(absl::UnavailableError("x"), Reason::kDeviceLost));
  EXPECT_FALSE(HasReason(absl::OkStatus(), Reason::kDeviceLost));
}

TEST_F(DeviceCudaTest, BuffersOfEveryKindAreZero) {
  ASSERT_TRUE(OpenCudaDevice(0).ok());
  const std::uint64_t before = cuda_emulator::DeviceBytesAllocated();
  for (const MemoryKind kind : {MemoryKind::kPinned, MemoryKind::kDevice}) {
    DeviceBuffer buffer = Make(kind, 5000);
    EXPECT_EQ(buffer.kind(), kind);
    EXPECT_EQ(buffer.size_bytes(), 5000);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(buffer.data()) % 256, 0u);
    // The test can read the emulated device's memory.
    const auto* const bytes = static_cast<const char*>(buffer.data());
    EXPECT_TRUE(std::all_of(bytes, bytes + 5000, [](char c) { return c == 0; }));
    DeviceBuffer moved = std::move(buffer);
    EXPECT_EQ(moved.data(), bytes);
    EXPECT_EQ(Make(kind, 0).data(), nullptr);
    EXPECT_EQ(DeviceBuffer::Allocate(kind, -1).status().code(), absl::StatusCode::kInvalidArgument);
  }
  EXPECT_EQ(cuda_emulator::DeviceBytesAllocated(), before);
}

TEST_F(DeviceCudaTest, ReportsBuffersThatDoNotFit) {
  Set([](EmulatorOptions& o) { o.memory_bytes = 1 << 20; });
  ASSERT_TRUE(OpenCudaDevice(0).ok());
  const absl::Status status = DeviceBuffer::Allocate(MemoryKind::kDevice, 2 << 20).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()), HasSubstr("2097152 bytes of device memory"));
  InjectFault({.where = "cudaHostAlloc", .error = cudaErrorMemoryAllocation});
  EXPECT_EQ(DeviceBuffer::Allocate(MemoryKind::kPinned, 16).status().code(),
            absl::StatusCode::kResourceExhausted);
  // A block whose zeroing failed is freed.
  const std::uint64_t before = cuda_emulator::DeviceBytesAllocated();
  InjectFault({.where = "cudaMemset", .error = cudaErrorNotSupported});
  EXPECT_EQ(DeviceBuffer::Allocate(MemoryKind::kDevice, 16).status().code(),
            absl::StatusCode::kInternal);
  EXPECT_EQ(cuda_emulator::DeviceBytesAllocated(), before);
}

class StreamCudaTest : public DeviceCudaTest {
 protected:
  StreamCudaTest() : device_(OpenCudaDevice(0).value()) {
    stream_.emplace(Stream::Create(device_).value());
    memory_ = Make(MemoryKind::kDevice, 64);
    pinned_ = Make(MemoryKind::kPinned, 64);
  }
  char* memory() const { return static_cast<char*>(memory_.data()); }
  char* pinned() const { return static_cast<char*>(pinned_.data()); }

  Device device_;
  std::optional<Stream> stream_;
  DeviceBuffer memory_;
  DeviceBuffer pinned_;
};

TEST_F(StreamCudaTest, PinnedBytesAreReadWhenTheCopyRuns) {
  std::strcpy(pinned(), "early");
  ASSERT_TRUE(stream_->Copy(memory(), pinned(), 6).ok());
  std::strcpy(pinned(), "later");
  ASSERT_TRUE(stream_->Synchronize().ok());
  EXPECT_STREQ(memory(), "later");
}

TEST_F(StreamCudaTest, PageableBytesAreReadAtOnce) {
  char host[6] = "early";
  ASSERT_TRUE(stream_->Copy(memory(), host, 6).ok());
  std::strcpy(host, "later");
  ASSERT_TRUE(stream_->Synchronize().ok());
  EXPECT_STREQ(memory(), "early");
  char back[6] = {};
  ASSERT_TRUE(stream_->Copy(back, memory(), 6).ok());
  EXPECT_STREQ(back, "early");
}

TEST_F(StreamCudaTest, ZeroesAndRejectsRangesOutside) {
  std::memset(memory(), 1, 64);
  ASSERT_TRUE(stream_->Zero(memory() + 8, 4).ok());
  ASSERT_TRUE(stream_->Zero(memory(), 0).ok());
  ASSERT_TRUE(stream_->Copy(memory(), nullptr, 0).ok());
  ASSERT_TRUE(stream_->Synchronize().ok());
  EXPECT_EQ(memory()[7], 1);
  EXPECT_EQ(memory()[8], 0);
  EXPECT_EQ(memory()[12], 1);
  const absl::Status outside = stream_->Copy(memory() + 60, pinned(), 8);
  EXPECT_EQ(outside.code(), absl::StatusCode::kInternal);
  EXPECT_THAT(std::string(outside.message()),
              HasSubstr("cannot copy 8 bytes: cudaErrorInvalidValue"));
  EXPECT_EQ(stream_->Zero(memory(), -1).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(stream_->Copy(memory(), pinned(), -1).code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(StreamCudaTest, EventsOrderStreamsAndCanBePolled) {
  Stream other = Stream::Create(device_).value();
  Event event = Event::Create(device_).value();
  EXPECT_TRUE(event.Synchronize().ok());
  EXPECT_TRUE(event.IsDone().value());
  std::strcpy(pinned(), "first");
  ASSERT_TRUE(stream_->Copy(memory(), pinned(), 6).ok());
  ASSERT_TRUE(event.Record(*stream_).ok());
  ASSERT_TRUE(other.WaitFor(event).ok());
  ASSERT_TRUE(other.Copy(memory() + 32, memory(), 6).ok());
  EXPECT_FALSE(event.IsDone().value());
  ASSERT_TRUE(other.Synchronize().ok());
  EXPECT_STREQ(memory() + 32, "first");
  EXPECT_TRUE(event.IsDone().value());
  EXPECT_TRUE(event.Synchronize().ok());
  event = Event::Create(device_).value();
  ASSERT_TRUE(event.Record(*stream_).ok());
  EXPECT_TRUE(event.Synchronize().ok());
}

TEST_F(StreamCudaTest, TimerMeasuresTheWorkBetweenItsEvents) {
  DeviceTimer timer = DeviceTimer::Create(*stream_).value();
  EXPECT_EQ(timer.Elapsed().status().code(), absl::StatusCode::kInternal) << "never started";
  ASSERT_TRUE(timer.Start().ok());
  ASSERT_TRUE(stream_->Zero(memory(), 64).ok());
  ASSERT_TRUE(timer.Stop().ok());
  const absl::Duration time = timer.Elapsed().value();
  EXPECT_EQ(memory()[63], 0);
  EXPECT_GE(time, absl::ZeroDuration());
  EXPECT_LT(time, absl::Minutes(1));
  const Stream cpu = Stream::Create(Device::Cpu()).value();
  EXPECT_EQ(DeviceTimer::Create(cpu).status().code(), absl::StatusCode::kUnimplemented);
}

TEST_F(StreamCudaTest, WorkHasEndedWhenAStreamIsDestroyed) {
  std::strcpy(pinned(), "whole");
  {
    Stream other = Stream::Create(device_).value();
    Stream moved = std::move(other);
    ASSERT_TRUE(moved.Copy(memory(), pinned(), 6).ok());
    other = std::move(moved);
  }
  EXPECT_STREQ(memory(), "whole");
}

TEST_F(StreamCudaTest, OtherThreadsCanUseTheDevice) {
  std::thread([&] {
    ASSERT_TRUE(UseDevice(device_).ok());
    Stream stream = Stream::Create(device_).value();
    std::strcpy(pinned(), "there");
    ASSERT_TRUE(stream.Copy(memory(), pinned(), 6).ok());
    ASSERT_TRUE(stream.Synchronize().ok());
  }).join();
  EXPECT_STREQ(memory(), "there");
}

TEST_F(StreamCudaTest, CapturedWorkRunsAtEachLaunchOnly) {
  auto graph = DeviceGraph::Capture(*stream_, [&]() -> absl::Status {
    if (auto s = stream_->Copy(memory(), pinned(), 6); !s.ok()) return s;
    return stream_->Zero(memory() + 1, 2);
  });
  ASSERT_TRUE(graph.ok()) << graph.status();
  EXPECT_EQ(graph->num_nodes(), 2);
  ASSERT_TRUE(stream_->Synchronize().ok());
  EXPECT_STREQ(memory(), "");
  for (const char* text : {"words", "other"}) {
    std::strcpy(pinned(), text);
    ASSERT_TRUE(graph->Launch(*stream_).ok());
    ASSERT_TRUE(stream_->Synchronize().ok());
    EXPECT_EQ(memory()[0], text[0]);
    EXPECT_EQ(memory()[1], 0);
    EXPECT_STREQ(memory() + 3, text + 3);
  }
  DeviceGraph moved = *std::move(graph);
  EXPECT_EQ(moved.num_nodes(), 2);
  ASSERT_TRUE(moved.Launch(*stream_).ok());
}

TEST_F(StreamCudaTest, FailedCapturesLeaveTheStreamUsable) {
  const auto enqueue = [&] { return stream_->Zero(memory(), 4); };
  // The caller's function fails.
  EXPECT_EQ(DeviceGraph::Capture(*stream_, [] { return absl::AbortedError("no"); }).status().code(),
            absl::StatusCode::kAborted);
  // This call invalidates the capture.
  EXPECT_EQ(DeviceGraph::Capture(*stream_, [&] { return stream_->Synchronize(); }).status().code(),
            absl::StatusCode::kInternal);
  char host[4] = {};
  EXPECT_THAT(
      std::string(DeviceGraph::Capture(*stream_, [&] { return stream_->Copy(memory(), host, 4); })
                      .status()
                      .message()),
      HasSubstr("cudaErrorStreamCaptureUnsupported"));
  for (const char* call : {"cudaStreamBeginCapture", "cudaGraphGetNodes", "cudaGraphInstantiate"}) {
    InjectFault({.where = call, .error = cudaErrorMemoryAllocation});
    EXPECT_EQ(DeviceGraph::Capture(*stream_, enqueue).status().code(),
              absl::StatusCode::kResourceExhausted)
        << call;
  }
  const auto graph = DeviceGraph::Capture(*stream_, enqueue);
  ASSERT_TRUE(graph.ok()) << graph.status();
  EXPECT_EQ(graph->num_nodes(), 1);
}

TEST_F(StreamCudaTest, LostDeviceStaysLost) {
  ASSERT_TRUE(stream_->Zero(memory(), 4).ok());
  InjectFault(
      {.where = "cudaStreamSynchronize", .error = cudaErrorECCUncorrectable, .sticky = true});
  const absl::Status lost = stream_->Synchronize();
  EXPECT_TRUE(HasReason(lost, Reason::kDeviceLost)) << lost;
  EXPECT_THAT(std::string(lost.message()), HasSubstr("uncorrectable ECC error"));
  EXPECT_TRUE(HasReason(stream_->Zero(memory(), 4), Reason::kDeviceLost));
  EXPECT_TRUE(HasReason(Stream::Create(device_).status(), Reason::kDeviceLost));
  EXPECT_TRUE(
      HasReason(DeviceBuffer::Allocate(MemoryKind::kDevice, 16).status(), Reason::kDeviceLost));
  EXPECT_TRUE(HasReason(FreeDeviceMemory(device_).status(), Reason::kDeviceLost));
  EXPECT_TRUE(HasReason(DeviceGraph::Capture(*stream_, [] { return absl::OkStatus(); }).status(),
                        Reason::kDeviceLost));
  // Destructors also run without a device.
  { const DeviceBuffer dropped = std::move(memory_); }
}

}  // namespace
}  // namespace quire
