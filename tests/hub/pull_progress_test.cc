#include "hub/pull_progress.h"

#include <gtest/gtest.h>

#include <thread>

namespace quire::hub {
namespace {

std::vector<RepositoryFile> TwoFiles() {
  return {{.name = "a", .size_bytes = 10, .hash = ""}, {.name = "b", .size_bytes = 0, .hash = ""}};
}

TEST(PullProgressTest, ReportsUpdates) {
  PullProgress progress;
  EXPECT_TRUE(progress.files().empty());
  progress.SetNote("HTTP 503");
  EXPECT_EQ(progress.note(), "HTTP 503");
  progress.Start(TwoFiles());
  EXPECT_TRUE(progress.CheckIntegrity().ok());
  progress.Update(0, FileState::kRetrying, 4, "HTTP 500");
  progress.Update(1, FileState::kDone, 0);
  progress.AddReceived(4);
  const std::vector<FileProgress> files = progress.files();
  ASSERT_EQ(files.size(), 2U);
  EXPECT_EQ(files[0].done_bytes, 4);
  EXPECT_EQ(files[0].note, "HTTP 500");
  EXPECT_EQ(files[1].state, FileState::kDone);
  EXPECT_EQ(progress.received_bytes(), 4);
  EXPECT_TRUE(progress.CheckIntegrity().ok());
  progress.Update(0, FileState::kDone, 9);
  EXPECT_TRUE(absl::IsInternal(progress.CheckIntegrity()));
}

TEST(PullProgressTest, StaysSoundWhileThreadsWrite) {
  PullProgress progress;
  progress.Start(TwoFiles());
  std::thread writer([&] {
    for (std::int64_t i = 0; i <= 10'000; ++i) {
      progress.AddReceived(1);
      const bool is_last = i == 10'000;
      progress.Update(0, is_last ? FileState::kDone : FileState::kLoading, is_last ? 10 : i % 10);
    }
  });
  while (progress.received_bytes() < 10'001) ASSERT_TRUE(progress.CheckIntegrity().ok());
  writer.join();
  EXPECT_TRUE(progress.CheckIntegrity().ok());
  EXPECT_EQ(progress.files()[0].done_bytes, 10);
}

TEST(PullProgressDeathTest, RefusesMoreBytesThanTheFileHas) {
  PullProgress progress;
  progress.Start(TwoFiles());
  EXPECT_DEATH(progress.Update(0, FileState::kLoading, 11), "done_bytes");
}

}  // namespace
}  // namespace quire::hub
