#include "base/mapped_file.h"

#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/temp_dir.h"

namespace quire {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

TEST(MappedFileTest, MapsTheWholeFile) {
  quire::testing::TempDir dir;
  const std::string name = dir.Write("a", std::string(10000, 'x') + "end");
  const auto file = MappedFile::Open(name);
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->size_bytes(), 10003);
  EXPECT_EQ(file->text().substr(10000), "end");
  EXPECT_EQ(file->path(), name);
}

TEST(MappedFileTest, FollowsSymbolicLinks) {
  quire::testing::TempDir dir;
  dir.Write("blobs/1", "content");
  const std::string link = dir.path() + "/link";
  std::filesystem::create_symlink("blobs/1", link);
  const auto file = MappedFile::Open(link);
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->text(), "content");
}

TEST(MappedFileTest, SpanSurvivesMoves) {
  quire::testing::TempDir dir;
  auto file = MappedFile::Open(dir.Write("a", "abc"));
  ASSERT_TRUE(file.ok());
  const std::byte* const data = file->bytes().data();
  MappedFile moved = *std::move(file);
  EXPECT_EQ(moved.bytes().data(), data);
  auto other = MappedFile::Open(dir.Write("b", "xy"));
  ASSERT_TRUE(other.ok());
  *other = std::move(moved);
  EXPECT_EQ(other->bytes().data(), data);
  EXPECT_EQ(other->text(), "abc");
}

// Returns the bytes of file pages that are resident in this process (proc(5), statm).
std::int64_t ResidentFileBytes() {
  std::ifstream file("/proc/self/statm");
  std::int64_t total = 0, resident = 0, shared = 0;
  file >> total >> resident >> shared;
  return shared * sysconf(_SC_PAGESIZE);
}

TEST(MappedFileTest, ForgottenPagesUseNoMemoryAndAreReread) {
  constexpr std::int64_t kBytes = 32 << 20;
  quire::testing::TempDir dir;
  std::string content(kBytes, '\0');
  for (std::size_t i = 0; i < content.size(); ++i) content[i] = static_cast<char>(i * 7 + i / 4096);
  const auto file = MappedFile::Open(dir.Write("a", content));
  ASSERT_TRUE(file.ok()) << file.status();
  const std::int64_t before = ResidentFileBytes();
  ASSERT_TRUE(file->text() == content);
  EXPECT_GT(ResidentFileBytes() - before, kBytes * 9 / 10);
  // The first and the last page are shared with other data.
  MappedFile::Forget(file->bytes().subspan(100, kBytes - 200));
  EXPECT_LT(ResidentFileBytes() - before, kBytes / 10);
  EXPECT_TRUE(file->text() == content);
  MappedFile::Forget(file->bytes().subspan(4000, 50));  // contains no whole page
  MappedFile::Forget({});
  EXPECT_TRUE(file->text() == content);
}

TEST(MappedFileTest, NamesWhatIsWrong) {
  quire::testing::TempDir dir;
  const auto expect_error = [](const std::string& path, absl::StatusCode code, const char* what) {
    const absl::Status status = MappedFile::Open(path).status();
    EXPECT_EQ(status.code(), code) << status;
    EXPECT_THAT(std::string(status.message()), StartsWith(path));
    EXPECT_THAT(std::string(status.message()), HasSubstr(what));
  };
  using absl::StatusCode;
  expect_error(dir.path() + "/absent", StatusCode::kNotFound, "cannot open");
  expect_error(dir.path(), StatusCode::kInvalidArgument, "is a directory");
  expect_error(dir.Write("empty", ""), StatusCode::kInvalidArgument, "file is empty");
  expect_error("/dev/null", StatusCode::kInvalidArgument, "is not a regular file");
  // Nothing writes to the FIFO, so a blocking open would never return.
  ASSERT_EQ(mkfifo((dir.path() + "/fifo").c_str(), 0600), 0);
  expect_error(dir.path() + "/fifo", StatusCode::kInvalidArgument, "is not a regular file");
  std::filesystem::create_symlink("nowhere", dir.path() + "/dangling");
  expect_error(dir.path() + "/dangling", StatusCode::kNotFound, "cannot open");
  EXPECT_EQ(MappedFile::Open("").status().code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace quire
