#include "base/settled_files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <fstream>
#include <thread>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "tests/testing/temp_dir.h"
#include "tests/testing/waiting.h"

namespace quire {
namespace {

using ::testing::HasSubstr;

class SettledFilesTest : public ::testing::Test {
 protected:
  const testing::TempDir dir_;
  const std::string path_ = dir_.Write("tokens", "one\n");
  const std::vector<NamedFile> files_ = {{"auth.tokens_file", path_},
                                         {"tls.cert_file", dir_.path() + "/absent"}};
};

TEST_F(SettledFilesTest, WaitsOnlyForFilesThatHaveChanged) {
  const FileStamps known = *StampFiles(files_);
  absl::Time begin = MonotonicNow();
  for (int i = 0; i < 5; ++i) EXPECT_EQ(*WaitUntilSettled(files_, known), known);
  EXPECT_LT(MonotonicNow() - begin, 5 * kSettleTime);

  dir_.Write("tokens", "one\ntwo\n");
  begin = MonotonicNow();
  const absl::StatusOr<FileStamps> settled = WaitUntilSettled(files_, known);
  ASSERT_TRUE(settled.ok()) << settled.status();
  EXPECT_GE(MonotonicNow() - begin, kSettleTime);
  EXPECT_EQ(*settled, *StampFiles(files_));
  EXPECT_NE(*settled, known);
}

TEST_F(SettledFilesTest, WaitsForAFileWrittenInPlace) {
  constexpr int kLines = 30;
  absl::Duration longest_pause;
  std::thread writer([&] {
    std::ofstream out(path_, std::ios::trunc);
    absl::Time last = MonotonicNow();
    for (int i = 0; i < kLines; ++i) {
      const absl::Time begin = MonotonicNow();
      out << i << std::endl;
      longest_pause = std::max(longest_pause, MonotonicNow() - last);
      last = begin;
      testing::Pace(absl::Milliseconds(50));
    }
  });
  const absl::StatusOr<FileStamps> settled = WaitUntilSettled(files_, {});
  const FileStamps whole = *StampFiles(files_);
  writer.join();
  if (longest_pause >= kSettleTime) GTEST_SKIP() << "the machine was too slow for the writer";
  ASSERT_TRUE(settled.ok()) << settled.status();
  EXPECT_EQ(*settled, whole);
  EXPECT_EQ(whole, *StampFiles(files_));
}

TEST_F(SettledFilesTest, NamesAFileThatKeepsChanging) {
  std::atomic<bool> is_over{false};
  std::thread writer([&] {
    std::ofstream out(path_, std::ios::app);
    while (!is_over) {
      out << "more" << std::endl;
      testing::Pace(absl::Milliseconds(1));
    }
  });
  const absl::Status status = WaitUntilSettled(files_, {}, absl::ZeroDuration()).status();
  is_over = true;
  writer.join();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr(absl::StrCat("auth.tokens_file: ", path_, " is still being written")));
}

TEST_F(SettledFilesTest, NamesAFileThatChangedDuringTheRead) {
  const FileStamps before = *StampFiles(files_);
  EXPECT_TRUE(CheckUnchanged(files_, before).ok());
  dir_.Write("absent", "now there");
  EXPECT_EQ(CheckUnchanged(files_, before),
            absl::UnavailableError(absl::StrCat("tls.cert_file: ", dir_.path(),
                                                "/absent changed while it was read; retry")));
}

}  // namespace
}  // namespace quire
