#include "hub/cache/file_lock.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <optional>
#include <utility>

#include "tests/testing/temp_dir.h"

namespace quire::hub {
namespace {

TEST(FileLockTest, ExcludesOtherHolders) {
  const testing::TempDir dir;
  const std::string path = dir.path() + "/a/b.lock";
  absl::StatusOr<FileLock> first = FileLock::Try(path, LockMode::kExclusive);
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_TRUE(absl::IsUnavailable(FileLock::Try(path, LockMode::kExclusive).status()));
  EXPECT_TRUE(absl::IsUnavailable(FileLock::Try(path, LockMode::kShared).status()));
  first = absl::CancelledError();
  EXPECT_TRUE(FileLock::Try(path, LockMode::kExclusive).ok());
}

TEST(FileLockTest, SharedHoldersExcludeAnExclusiveOne) {
  const testing::TempDir dir;
  const std::string path = dir.path() + "/b.lock";
  const absl::StatusOr<FileLock> one = FileLock::Try(path, LockMode::kShared);
  const absl::StatusOr<FileLock> two = FileLock::Try(path, LockMode::kShared);
  ASSERT_TRUE(one.ok() && two.ok());
  EXPECT_TRUE(absl::IsUnavailable(FileLock::Try(path, LockMode::kExclusive).status()));
}

TEST(FileLockTest, LocksTheNewFileAfterARemoval) {
  const testing::TempDir dir;
  const std::string path = dir.path() + "/b.lock";
  const absl::StatusOr<FileLock> old = FileLock::Try(path, LockMode::kExclusive);
  ASSERT_TRUE(old.ok() && std::filesystem::remove(path));
  const absl::StatusOr<FileLock> next = FileLock::Try(path, LockMode::kExclusive);
  ASSERT_TRUE(next.ok());
  EXPECT_TRUE(absl::IsUnavailable(FileLock::Try(path, LockMode::kExclusive).status()));
}

TEST(FileLockTest, ReportsAPathThatCannotBeOpened) {
  const testing::TempDir dir;
  const std::string path = dir.Write("file", "") + "/b.lock";
  const absl::Status status = FileLock::Try(path, LockMode::kShared).status();
  EXPECT_FALSE(status.ok() || absl::IsUnavailable(status));
  EXPECT_NE(status.message().find(path), absl::string_view::npos) << status;
}

}  // namespace
}  // namespace quire::hub
