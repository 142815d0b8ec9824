#include "base/small_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <memory>
#include <thread>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/logging.h"
#include "base/mutex.h"
#include "tests/testing/temp_dir.h"
#include "tests/testing/waiting.h"

namespace quire {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

class SmallFileTest : public ::testing::Test {
 protected:
  std::string Path(const std::string& name) const { return absl::StrCat(dir_.path(), "/", name); }

  void ExpectError(const std::string& path, absl::StatusCode code, const char* what) const {
    const absl::Status status = ReadSmallFile(path, 100).status();
    EXPECT_EQ(status.code(), code) << status;
    EXPECT_THAT(std::string(status.message()), StartsWith(path));
    EXPECT_THAT(std::string(status.message()), HasSubstr(what));
  }

  const testing::TempDir dir_;
};

TEST_F(SmallFileTest, ReadsTheWholeFileUpToTheLimit) {
  EXPECT_EQ(*ReadSmallFile(dir_.Write("a", "content"), 100), "content");
  EXPECT_EQ(*ReadSmallFile(dir_.Write("empty", ""), 100), "");
  EXPECT_EQ(*ReadSmallFile(dir_.Write("full", std::string(100, 'x')), 100), std::string(100, 'x'));
  ExpectError(dir_.Write("more", std::string(101, 'x')), absl::StatusCode::kInvalidArgument,
              "has more than 100 bytes");
  std::filesystem::create_symlink("a", Path("link"));
  EXPECT_EQ(*ReadSmallFile(Path("link"), 100), "content");
}

// Nothing writes to the FIFO, so an open that waits would never return.
TEST_F(SmallFileTest, RejectsFilesThatAreNotRegularWithoutWaiting) {
  using absl::StatusCode;
  ASSERT_EQ(mkfifo(Path("fifo").c_str(), 0600), 0);
  ExpectError(Path("fifo"), StatusCode::kInvalidArgument, "it is not a regular file");
  ExpectError("/dev/zero", StatusCode::kInvalidArgument, "it is not a regular file");
  ExpectError(dir_.path(), StatusCode::kInvalidArgument, "it is a directory");
  ExpectError(Path("absent"), StatusCode::kNotFound, "cannot be read: No such file");
  EXPECT_EQ(ReadSmallFile("", 100).status().code(), StatusCode::kInvalidArgument);

  const int listener = socket(AF_UNIX, SOCK_STREAM, 0);
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  Path("socket").copy(address.sun_path, sizeof(address.sun_path) - 1);
  ASSERT_EQ(bind(listener, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  ExpectError(Path("socket"), StatusCode::kInvalidArgument, "it is not a regular file");
  close(listener);
}

// Each version consists of one letter, so a file with two letters was read while it was written.
TEST_F(SmallFileTest, ReadsOneVersionOfAFileThatIsBeingReplaced) {
  constexpr std::size_t kBytes = std::size_t{1} << 20;
  const std::string path = dir_.Write("file", std::string(kBytes, 'a'));
  std::atomic<bool> is_over{false};
  std::thread writer([&] {
    for (char c = 'b'; !is_over; c = c == 'z' ? 'a' : static_cast<char>(c + 1)) {
      const std::string next = dir_.Write("next", std::string(kBytes, c));
      std::filesystem::rename(next, path);
    }
  });
  for (int i = 0; i < 50; ++i) {
    const absl::StatusOr<std::string> content = ReadSmallFile(path, kBytes);
    ASSERT_TRUE(content.ok()) << content.status();
    EXPECT_EQ(*content, std::string(kBytes, content->front()));
  }
  is_over = true;
  writer.join();
}

TEST_F(SmallFileTest, StampChangesWhenAFileIsWrittenOrReplaced) {
  const std::string path = dir_.Write("a", "one");
  const FileStamp first = *ReadFileStamp(path);
  EXPECT_NE(first, FileStamp());
  EXPECT_EQ(*ReadFileStamp(path), first);
  std::ofstream(path, std::ios::app) << "more";
  const FileStamp second = *ReadFileStamp(path);
  EXPECT_NE(second, first);
  std::filesystem::rename(dir_.Write("b", "onemore"), path);
  EXPECT_NE(*ReadFileStamp(path), second);
  unlink(path.c_str());
  EXPECT_EQ(*ReadFileStamp(path), FileStamp());
}

// Simulates a file system that does not respond until Open is called.
struct Gate {
  Mutex mutex;
  CondVar changed;
  bool is_open ABSL_GUARDED_BY(mutex) = false;
  int passed ABSL_GUARDED_BY(mutex) = 0;

  void Wait() {
    MutexLock lock(&mutex);
    while (!is_open) changed.Wait(&mutex);
    ++passed;
  }
  void Open() {
    MutexLock lock(&mutex);
    is_open = true;
    changed.NotifyAll();
  }
  int Passed() {
    MutexLock lock(&mutex);
    return passed;
  }
};

TEST_F(SmallFileTest, ReadsTimeOutOnAFileSystemThatDoesNotRespond) {
  const std::string path = dir_.Write("a", "content");
  const auto gate = std::make_shared<Gate>();
  for (int i = 0; i < kMaxAbandonedThreads; ++i) {
    const absl::Status answered = RunWithTimeout(absl::Milliseconds(1), [gate] { gate->Wait(); });
    EXPECT_EQ(answered.code(), absl::StatusCode::kDeadlineExceeded);
    EXPECT_EQ(answered.message(), "its file system did not respond within 1ms");
  }
  // Threads that never return would accumulate.
  const absl::Time begin = MonotonicNow();
  EXPECT_EQ(RunWithTimeout(absl::Hours(1), [] {}).code(), absl::StatusCode::kResourceExhausted);
  ExpectError(path, absl::StatusCode::kResourceExhausted,
              "files are not read while 16 threads wait");
  // The log file is opened in the same way.
  const absl::Status log = log::Configure({.file = Path("log")});
  EXPECT_EQ(log.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(log.message()), HasSubstr("while 16 threads wait"));
  EXPECT_LT(MonotonicNow() - begin, kFileTimeout);
  gate->Open();
  EXPECT_TRUE(testing::WaitUntil([&] { return ReadSmallFile(path, 100).ok(); }));
  EXPECT_TRUE(testing::WaitUntil([&] { return gate->Passed() == kMaxAbandonedThreads; }));
}

}  // namespace
}  // namespace quire
