#include "base/device_buffer.h"

#include <algorithm>
#include <limits>

#include "base/stream.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace quire {
namespace {

TEST(DeviceBufferTest, IsZeroedAndAligned) {
  for (const std::int64_t size :
       {std::int64_t{1}, std::int64_t{4096}, std::int64_t{4097}, DeviceBuffer::kHugePageBytes,
        DeviceBuffer::kHugePageBytes + 1, 5 * DeviceBuffer::kHugePageBytes}) {
    const auto buffer = DeviceBuffer::Allocate(MemoryKind::kHost, size);
    ASSERT_TRUE(buffer.ok()) << buffer.status();
    const auto address = reinterpret_cast<std::uintptr_t>(buffer->data());
    const bool is_huge = size >= DeviceBuffer::kHugePageBytes;
    EXPECT_EQ(address % static_cast<std::uintptr_t>(is_huge ? DeviceBuffer::kHugePageBytes
                                                            : DeviceBuffer::kAlignment),
              0u);
    EXPECT_EQ(buffer->size_bytes(), size);
    const std::span<std::byte> bytes = buffer->bytes();
    EXPECT_TRUE(
        std::all_of(bytes.begin(), bytes.end(), [](std::byte b) { return b == std::byte{0}; }));
    std::fill(bytes.begin(), bytes.end(), std::byte{0xff});
  }
}

TEST(DeviceBufferTest, MovesKeepTheMemory) {
  auto buffer = DeviceBuffer::Allocate(MemoryKind::kHost, 100);
  ASSERT_TRUE(buffer.ok());
  void* const data = buffer->data();
  DeviceBuffer moved = *std::move(buffer);
  EXPECT_EQ(moved.data(), data);
  DeviceBuffer assigned;
  assigned = std::move(moved);
  EXPECT_EQ(assigned.data(), data);
  EXPECT_EQ(assigned.size_bytes(), 100);
}

// A freed block is unmapped, so the last line would crash if the parts did not keep it.
TEST(DeviceBufferTest, PartsKeepTheBlockAlive) {
  DeviceBuffer part;
  {
    auto whole = DeviceBuffer::Allocate(MemoryKind::kHost, 3 * DeviceBuffer::kAlignment);
    ASSERT_TRUE(whole.ok());
    whole->bytes()[5000] = std::byte{7};
    part = whole->Part(4096, 1000);
    EXPECT_EQ(part.data(), whole->bytes().data() + 4096);
    // Uses a part of a part, and the end of the block.
    EXPECT_EQ(part.Part(1000, 0).size_bytes(), 0);
    EXPECT_EQ(whole->Part(whole->size_bytes() - 1, 1).kind(), MemoryKind::kHost);
    EXPECT_DEATH(part.Part(1, 1000), "size_bytes");
    EXPECT_DEATH(part.Part(-1, 1), "size_bytes");
  }
  EXPECT_EQ(part.size_bytes(), 1000);
  EXPECT_EQ(part.bytes()[904], std::byte{7});
}

TEST(DeviceBufferTest, RejectsImpossibleAllocations) {
  EXPECT_EQ(DeviceBuffer::Allocate(MemoryKind::kHost, -1).status().code(),
            absl::StatusCode::kInvalidArgument);
  for (const std::int64_t size :
       {std::int64_t{1} << 60, std::numeric_limits<std::int64_t>::max()}) {
    EXPECT_EQ(DeviceBuffer::Allocate(MemoryKind::kHost, size).status().code(),
              absl::StatusCode::kResourceExhausted);
  }
  const auto empty = DeviceBuffer::Allocate(MemoryKind::kHost, 0);
  ASSERT_TRUE(empty.ok());
  EXPECT_TRUE(empty->bytes().empty());
}

// device_cuda_test.cc tests builds with CUDA.
TEST(DeviceBufferTest, OtherKindsRequireCuda) {
  if (HasCuda()) GTEST_SKIP() << "the build has CUDA";
  for (const MemoryKind kind : {MemoryKind::kPinned, MemoryKind::kDevice}) {
    const absl::Status status = DeviceBuffer::Allocate(kind, 10).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
    EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr("CUDA"));
  }
}

TEST(StreamTest, CpuStreamHasNothingToWaitFor) {
  auto stream = Stream::Create(Device::Cpu());
  ASSERT_TRUE(stream.ok());
  EXPECT_TRUE(stream->device().is_cpu());
  EXPECT_EQ(stream->cuda(), nullptr);
  EXPECT_TRUE(stream->Synchronize().ok());
  char to[4] = {1, 2, 3, 4};
  EXPECT_TRUE(stream->Copy(to, "abc", 4).ok());
  EXPECT_STREQ(to, "abc");
  EXPECT_TRUE(stream->Zero(to, 3).ok());
  EXPECT_EQ(to[2], 0);
  auto event = Event::Create(Device::Cpu());
  ASSERT_TRUE(event.ok());
  EXPECT_TRUE(event->Record(*stream).ok());
  EXPECT_TRUE(stream->WaitFor(*event).ok());
  EXPECT_TRUE(event->IsDone().value());
  if (!HasCuda()) {
    EXPECT_EQ(Stream::Create(Device{.kind = DeviceKind::kCuda}).status().code(),
              absl::StatusCode::kUnimplemented);
  }
}

}  // namespace
}  // namespace quire
