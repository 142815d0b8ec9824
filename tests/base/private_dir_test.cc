#include "base/private_dir.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "tests/testing/temp_dir.h"

namespace quire {
namespace {

using ::testing::HasSubstr;

class PrivateDirTest : public ::testing::Test {
 protected:
  const testing::TempDir dir_;
  const std::string path_ = absl::StrCat(dir_.path(), "/private");
};

TEST_F(PrivateDirTest, IsCreatedAndReused) {
  EXPECT_EQ(CheckPrivateDir(path_).code(), absl::StatusCode::kNotFound);
  for (int i = 0; i < 2; ++i) {
    const absl::Status made = MakePrivateDir(path_);
    EXPECT_TRUE(made.ok()) << made;
  }
  struct stat info = {};
  ASSERT_EQ(stat(path_.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 07777u, 0700u);
  EXPECT_EQ(MakePrivateDir(absl::StrCat(dir_.path(), "/absent/private")).code(),
            absl::StatusCode::kUnavailable);
}

TEST_F(PrivateDirTest, RejectsFoldersAccessibleToOthers) {
  ASSERT_EQ(mkdir(path_.c_str(), 0700), 0);
  for (const unsigned mode : {0701u, 0710u, 0704u, 0720u, 0755u, 0777u, 01777u}) {
    ASSERT_EQ(chmod(path_.c_str(), mode), 0);
    const absl::Status status = MakePrivateDir(path_);
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << mode;
    EXPECT_THAT(std::string(status.message()), HasSubstr(path_ + " has mode "));
  }
  ASSERT_EQ(chmod(path_.c_str(), 0700), 0);
  EXPECT_TRUE(MakePrivateDir(path_).ok());
}

TEST_F(PrivateDirTest, RejectsLinksAndFiles) {
  const std::string target = absl::StrCat(dir_.path(), "/target");
  ASSERT_EQ(mkdir(target.c_str(), 0700), 0);
  ASSERT_EQ(symlink(target.c_str(), path_.c_str()), 0);
  EXPECT_THAT(std::string(MakePrivateDir(path_).message()), HasSubstr("is not a directory"));
  ASSERT_EQ(unlink(path_.c_str()), 0);
  dir_.Write("private", "a file");
  EXPECT_EQ(MakePrivateDir(path_).code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(PrivateDirTest, RejectsTheFolderOfAnotherUser) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can make a folder of another user";
  ASSERT_EQ(mkdir(path_.c_str(), 0700), 0);
  ASSERT_EQ(chown(path_.c_str(), 12345, 12345), 0);
  const absl::Status status = MakePrivateDir(path_);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("belongs to user 12345, it must belong to 0"));
}

}  // namespace
}  // namespace quire
