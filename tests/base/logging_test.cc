#include "base/logging.h"

#include <fcntl.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cmath>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/temp_dir.h"
#include "tests/testing/waiting.h"

namespace quire {
namespace {

using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;

class LoggingTest : public ::testing::Test {
 protected:
  LoggingTest() : file_(dir_.path() + "/log") { Configure(log::Format::kText); }
  ~LoggingTest() override { EXPECT_TRUE(log::Configure({}).ok()); }

  void Configure(log::Format format, std::uint32_t rate_limit = 0) {
    ASSERT_TRUE(log::Configure({.level = log::Level::kInfo,
                                .format = format,
                                .file = file_,
                                .rate_limit_per_second = rate_limit})
                    .ok());
  }

  std::vector<std::string> Lines() const {
    EXPECT_TRUE(log::Flush(absl::Seconds(20)));
    std::vector<std::string> lines;
    std::ifstream in(file_);
    for (std::string line; std::getline(in, line);) lines.push_back(line);
    return lines;
  }

  quire::testing::TempDir dir_;
  std::string file_;
};

TEST_F(LoggingTest, WritesTextFields) {
  log::Info("engine", "model loaded",
            {{"path", "/a b"}, {"layers", 12}, {"seconds", 0.5}, {"is_tied", true}, {"id", "x1"}});
  const auto lines = Lines();
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_THAT(lines[0], EndsWith(" info engine: model loaded path=\"/a b\" layers=12 seconds=0.5 "
                                 "is_tied=true id=x1"));
}

TEST_F(LoggingTest, EveryJsonLineParses) {
  Configure(log::Format::kJson);
  const std::string odd("q\"b\\n\nz\0\xff\xc3\xa9\xed\xa0\x80 \xf0\x9f\x98\x80\xe2\x82", 21);
  log::Error("a\"b", "odd", {{"text", odd}, {"nan", std::nan("")}, {"inf", -INFINITY}});
  log::Warn("x", "numbers",
            {{"min", std::numeric_limits<std::int64_t>::min()},
             {"max", std::numeric_limits<std::uint64_t>::max()},
             {"wait", absl::Milliseconds(1500)}});
  const auto lines = Lines();
  ASSERT_EQ(lines.size(), 2u);
  const auto first = nlohmann::json::parse(lines[0], nullptr, false);
  ASSERT_FALSE(first.is_discarded()) << lines[0];
  EXPECT_EQ(first["level"], "error");
  EXPECT_EQ(first["logger"], "a\"b");
  const std::string bad = "\xef\xbf\xbd";
  EXPECT_EQ(first["text"], std::string("q\"b\\n\nz\0", 8) + bad + "\xc3\xa9" + bad + bad + bad +
                               " \xf0\x9f\x98\x80" + bad);
  EXPECT_EQ(first["nan"], "nan");
  EXPECT_EQ(first["inf"], "-inf");
  const auto second = nlohmann::json::parse(lines[1], nullptr, false);
  ASSERT_FALSE(second.is_discarded()) << lines[1];
  EXPECT_EQ(second["min"], std::numeric_limits<std::int64_t>::min());
  EXPECT_EQ(second["max"], std::numeric_limits<std::uint64_t>::max());
  EXPECT_EQ(second["wait"], 1.5);
  EXPECT_THAT(second["time"].get<std::string>(), EndsWith("Z"));
}

// A terminal would execute some of these characters, and reverse the text after others.
TEST_F(LoggingTest, ControlCharactersAreEscapedInBothFormats) {
  const std::map<std::string, std::string> controls = {
      {"\x1b", "\\u001b"},         {"\x7f", "\\u007f"},
      {"\xc2\x80", "\\u0080"},     {"\xc2\x9b", "\\u009b"},
      {"\xc2\x9f", "\\u009f"},     {"\xd8\x9c", "\\u061c"},
      {"\xe2\x80\x8e", "\\u200e"}, {"\xe2\x80\x8f", "\\u200f"},
      {"\xe2\x80\xa8", "\\u2028"}, {"\xe2\x80\xa9", "\\u2029"},
      {"\xe2\x80\xaa", "\\u202a"}, {"\xe2\x80\xae", "\\u202e"},
      {"\xe2\x81\xa6", "\\u2066"}, {"\xe2\x81\xa9", "\\u2069"},
      {"\x9b", "\xef\xbf\xbd"},    {"\xc2\xa0", "\xc2\xa0"},
      {"\xe2\x80\xad", "\\u202d"}, {"\xe2\x81\xaa", "\xe2\x81\xaa"},
      {"\xd7\x90", "\xd7\x90"},    {"\xe2\x80\xa7", "\xe2\x80\xa7"}};
  for (const auto& [raw, escaped] : controls) {
    SCOPED_TRACE(escaped);
    Configure(log::Format::kText);
    log::Info("a", "seen", {{"id", absl::StrCat("x", raw, "y")}});
    const std::string text = Lines().back();
    if (raw == escaped) {
      EXPECT_THAT(text, EndsWith(absl::StrCat(" id=x", raw, "y")));
    } else {
      EXPECT_THAT(text, EndsWith(absl::StrCat(" id=\"x", escaped, "y\"")));
    }
    Configure(log::Format::kJson);
    log::Info("a", "seen", {{"id", absl::StrCat("x", raw, "y")}});
    const std::string json = Lines().back();
    EXPECT_THAT(json, EndsWith(absl::StrCat("\"id\":\"x", escaped, "y\"}")));
    EXPECT_TRUE(nlohmann::json::accept(json));
  }
}

TEST_F(LoggingTest, LevelsArePerLogger) {
  EXPECT_EQ(log::SetLevel("cache", log::Level::kTrace), log::Level::kInfo);
  EXPECT_EQ(log::SetLevel("engine", log::Level::kError), log::Level::kInfo);
  log::Debug("cache", "shown", {});
  log::Debug("server", "hidden", {});
  log::Warn("engine", "hidden", {});
  EXPECT_EQ(Lines().size(), 1u);
  EXPECT_EQ(log::SetLevel("cache", log::Level::kOff), log::Level::kTrace);
  log::Error("cache", "hidden", {});
  EXPECT_EQ(log::SetLevel("", log::Level::kWarn), log::Level::kInfo);
  log::Error("cache", "shown again", {});
  log::Info("server", "hidden", {});
  EXPECT_EQ(Lines().size(), 2u);
}

TEST_F(LoggingTest, LevelNamesRoundTrip) {
  for (const auto level : {log::Level::kTrace, log::Level::kDebug, log::Level::kInfo,
                           log::Level::kWarn, log::Level::kError, log::Level::kOff}) {
    EXPECT_EQ(log::LevelFromName(log::LevelName(level)), level);
  }
  EXPECT_EQ(log::LevelFromName("verbose"), std::nullopt);
}

TEST_F(LoggingTest, ReopenFollowsARotatedFile) {
  log::Info("a", "one");
  std::filesystem::rename(file_, file_ + ".1");
  log::Info("a", "two");
  EXPECT_FALSE(std::filesystem::exists(file_));
  ASSERT_TRUE(log::Reopen().ok());
  log::Info("a", "three");
  EXPECT_THAT(Lines(), ElementsAre(HasSubstr("three")));
}

TEST_F(LoggingTest, UnopenableFileChangesNothing) {
  const absl::Status status = log::Configure({.file = dir_.path()});
  EXPECT_FALSE(status.ok());
  EXPECT_THAT(std::string(status.message()), HasSubstr(dir_.path()));
  log::Info("a", "still here");
  EXPECT_EQ(Lines().size(), 1u);
}

TEST_F(LoggingTest, AutoFormatIsJsonInAFile) {
  Configure(log::Format::kAuto);
  log::Info("a", "one");
  ASSERT_TRUE(log::Reopen().ok());
  log::Info("a", "two");
  EXPECT_THAT(Lines(), ElementsAre(HasSubstr("\"msg\":\"one\""), HasSubstr("\"msg\":\"two\"")));
}

TEST_F(LoggingTest, CheckFileCreatesNothing) {
  EXPECT_TRUE(log::CheckFile("").ok());
  EXPECT_TRUE(log::CheckFile(file_).ok());
  EXPECT_TRUE(log::CheckFile(dir_.path() + "/new").ok());
  EXPECT_FALSE(std::filesystem::exists(dir_.path() + "/new"));
  EXPECT_THAT(std::string(log::CheckFile(dir_.path()).message()), HasSubstr("not a regular file"));
  EXPECT_THAT(std::string(log::CheckFile(dir_.path() + "/none/new").message()),
              HasSubstr("No such file or directory"));
}

TEST_F(LoggingTest, RateLimitCountsWhatItDrops) {
  Configure(log::Format::kText, 5);
  const std::uint64_t before = log::SuppressedLines();
  for (int i = 0; i < 1000; ++i) log::Info("a", "flood", {{"i", i}});
  log::Info("a", "another site");
  const std::size_t written = Lines().size() - 1;
  EXPECT_GE(written, 5u);
  EXPECT_LT(written, 500u);  // more lines would require a loop of 100 s
  EXPECT_EQ(log::SuppressedLines() - before, 1000 - written);
}

// Replaces standard error by a pipe that is read only on request.
class SlowReader {
 public:
  SlowReader() : standard_error_(dup(STDERR_FILENO)) {
    int ends[2] = {-1, -1};
    EXPECT_EQ(pipe2(ends, O_CLOEXEC), 0);
    fd_ = ends[0];
    EXPECT_EQ(fcntl(fd_, F_SETFL, O_NONBLOCK), 0);
    EXPECT_EQ(dup2(ends[1], STDERR_FILENO), STDERR_FILENO);
    close(ends[1]);
  }
  ~SlowReader() {
    dup2(standard_error_, STDERR_FILENO);
    close(standard_error_);
    close(fd_);
  }

  // Starts the log with a line that does not fit the pipe, so that the writer blocks.
  void Stick() {
    log::Info("a", "long", {{"text", std::string(std::size_t{2} << 20, 'x')}});
    EXPECT_TRUE(quire::testing::WaitUntil([this] {
      int unread = 0;
      return ioctl(fd_, FIONREAD, &unread) == 0 && unread > 0;
    }));
  }

  // Reads up to the `count`-th occurrence of `last`.
  std::string ReadUntil(const std::string& last, int count = 1) {
    std::string text;
    std::size_t looked_at = 0;
    EXPECT_TRUE(quire::testing::WaitUntil([&] {
      std::string bytes(65536, '\0');
      for (ssize_t size; (size = read(fd_, bytes.data(), bytes.size())) > 0;) {
        text.append(bytes, 0, static_cast<std::size_t>(size));
      }
      for (std::size_t at; count > 0 && (at = text.find(last, looked_at)) != text.npos; --count) {
        looked_at = at + last.size();
      }
      return count == 0;
    }));
    return text;
  }

 private:
  const int standard_error_;
  int fd_ = -1;
};

// Writes lines of 100 kB until one is dropped. Returns the number of lines that were not.
int FillQueue() {
  const std::uint64_t before = log::DroppedLines();
  const std::string text(100000, 'x');
  int lines = 0;
  for (;; ++lines) {
    log::Info("a", "line", {{"i", lines}, {"text", text}});
    if (log::DroppedLines() != before || lines > 1000) return lines;
  }
}

TEST_F(LoggingTest, StalledReaderBlocksNoThread) {
  SlowReader reader;
  ASSERT_TRUE(log::Configure({}).ok());
  const std::uint64_t before = log::DroppedLines();
  reader.Stick();
  const int lines = FillQueue();
  EXPECT_GT(lines, 10);
  EXPECT_LT(lines, 100);
  FillQueue();
  EXPECT_EQ(log::DroppedLines() - before, 2u);
  EXPECT_FALSE(log::Flush(absl::Milliseconds(10)));
  // Levels and the destination change meanwhile.
  ASSERT_TRUE(log::Configure({}).ok());
  EXPECT_EQ(log::SetLevel("", log::Level::kWarn), log::Level::kInfo);
  ASSERT_TRUE(log::Configure({.file = file_}).ok());
  log::Info("a", "elsewhere");
  const std::string read = reader.ReadUntil(" warn log: lines were dropped lines=2\n");
  EXPECT_THAT(read, HasSubstr(absl::StrCat(" i=", lines - 1, " ")));
  EXPECT_THAT(read, Not(HasSubstr(absl::StrCat(" i=", lines, " "))));
  EXPECT_THAT(Lines(), ElementsAre(EndsWith(" info a: elsewhere")));
}

TEST_F(LoggingTest, ReportsDroppedLinesAtTheirPosition) {
  SlowReader reader;
  ASSERT_TRUE(log::Configure({.format = log::Format::kJson, .file = ""}).ok());
  reader.Stick();
  FillQueue();
  log::Info("a", "there is room for a short one");
  FillQueue();
  // The second gap is not followed by a line.
  const std::string told = "\"msg\":\"lines were dropped\",\"lines\":1}\n";
  const std::string read = reader.ReadUntil(told, 2);
  EXPECT_LT(read.find(told), read.find("there is room"));
}

// A file size limit simulates a full disk.
TEST_F(LoggingTest, ReportsLinesLostToAFullDisk) {
  log::Info("a", "first");
  ASSERT_EQ(Lines().size(), 1u);
  const std::uint64_t before = log::DroppedLines();
  rlimit limit = {};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &limit), 0);
  const rlimit full = {.rlim_cur = std::filesystem::file_size(file_), .rlim_max = limit.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &full), 0);
  log::Info("a", "second");
  log::Info("a", "third");
  const bool is_flushed = log::Flush(absl::Seconds(20));
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
  ASSERT_TRUE(is_flushed);
  EXPECT_EQ(log::DroppedLines() - before, 2u);
  log::Info("a", "fourth");
  log::Info("a", "fifth");
  EXPECT_THAT(Lines(), ElementsAre(EndsWith("first"), EndsWith("lines were dropped lines=2"),
                                   EndsWith("fourth"), EndsWith("fifth")));
}

TEST(LoggingDeathTest, FlushesLinesBeforeTheProcessEnds) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto write = [] {
    for (int i = 0; i < 2000; ++i) log::Info("a", "line");
    log::Error("a", "last words");
  };
  EXPECT_EXIT((write(), std::exit(3)), ::testing::ExitedWithCode(3), "last words");
  EXPECT_EXIT((log::FlushOnCrash(), write(), std::abort()), ::testing::KilledBySignal(SIGABRT),
              "last words");
// Sanitizers handle faults of the process themselves, with a report.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  EXPECT_EXIT((log::FlushOnCrash(), write(), raise(SIGSEGV)), ::testing::KilledBySignal(SIGSEGV),
              "last words");
#endif
}

TEST_F(LoggingTest, ThreadsWriteWholeLines) {
  Configure(log::Format::kJson);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([t] {
      for (int i = 0; i < 250; ++i) {
        log::Info("t", "line", {{"thread", t}, {"i", i}});
        if (i % 50 == 0) log::SetLevel("other", log::Level::kDebug);
        if (i % 100 == 0) {
          EXPECT_TRUE(log::Reopen().ok());
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  const auto lines = Lines();
  EXPECT_EQ(lines.size(), 1000u);
  for (const std::string& line : lines) EXPECT_TRUE(nlohmann::json::accept(line)) << line;
}

}  // namespace
}  // namespace quire
