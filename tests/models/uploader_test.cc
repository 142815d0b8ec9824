#include "kernels/cuda/uploader.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>

#include "tests/cuda_emulator/emulator.h"

namespace quire::kernels {
namespace {

class UploaderTest : public testing::TestWithParam<int> {
 protected:
  UploaderTest() : pool_(GetParam()), stream_(*Stream::Create(*OpenCudaDevice(0))) {}

  ThreadPool pool_;
  Stream stream_;
};

TEST_P(UploaderTest, BytesOfAnySizeArriveUnchanged) {
  constexpr std::int64_t kPiece = 1024;
  std::mt19937_64 random(7);
  std::vector<std::byte> source(200000);
  for (std::byte& b : source) b = static_cast<std::byte>(random());
  auto buffer =
      DeviceBuffer::Allocate(MemoryKind::kDevice, static_cast<std::int64_t>(source.size()));
  ASSERT_TRUE(buffer.ok()) << buffer.status();
  auto uploader = Uploader::Create(stream_, &pool_, kPiece, 0);
  ASSERT_TRUE(uploader.ok()) << uploader.status();
  // Uploads sizes around one piece and around the total of all staging buffers in turn, from odd
  // addresses.
  std::int64_t at = 0;
  for (const std::int64_t bytes : {std::int64_t{0}, std::int64_t{1}, kPiece - 1, kPiece, kPiece + 1,
                                   2 * kPiece * GetParam() + 5, std::int64_t{100001}}) {
    // The host may modify its copy as soon as Copy has returned.
    std::vector<std::byte> host(source.begin() + at, source.begin() + at + bytes);
    const absl::Status status =
        (*uploader)->Copy(static_cast<std::byte*>(buffer->data()) + at, host.data(), bytes);
    ASSERT_TRUE(status.ok()) << status;
    std::fill(host.begin(), host.end(), std::byte{0});
    at += bytes;
  }
  ASSERT_TRUE((*uploader)->Finish().ok());
  std::vector<std::byte> back(static_cast<std::size_t>(at));
  ASSERT_TRUE(stream_.Copy(back.data(), buffer->data(), at).ok());
  ASSERT_TRUE(stream_.Synchronize().ok());
  EXPECT_EQ(std::memcmp(back.data(), source.data(), back.size()), 0);
}

TEST_P(UploaderTest, ReportsAFailedCopy) {
  auto buffer = DeviceBuffer::Allocate(MemoryKind::kDevice, 8192);
  auto uploader = Uploader::Create(stream_, &pool_, 1024, 0);
  ASSERT_TRUE(buffer.ok() && uploader.ok());
  const std::vector<std::byte> host(8192);
  cuda_emulator::InjectFault(
      {.where = "cudaMemcpyAsync", .error = cudaErrorInvalidValue, .after = 2});
  EXPECT_FALSE((*uploader)->Copy(buffer->data(), host.data(), 8192).ok());
  cuda_emulator::Reset();
}

INSTANTIATE_TEST_SUITE_P(Threads, UploaderTest, testing::Values(1, 3));

}  // namespace
}  // namespace quire::kernels
