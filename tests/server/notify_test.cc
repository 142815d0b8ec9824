// A supervisor's end of the socket, which receives what systemd would.

#include "server/notify.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/clock.h"

namespace quire::server {
namespace {

using ::testing::MatchesRegex;
using ::testing::StartsWith;

// Binds to a path, or to an abstract name that starts with '@'.
class Supervisor {
 public:
  explicit Supervisor(const std::string& name)
      : name_(name), fd_(socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0)) {
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path, name.data(), name.size());
    if (name[0] == '@') address.sun_path[0] = '\0';
    const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + name.size());
    EXPECT_EQ(bind(fd_, reinterpret_cast<const sockaddr*>(&address), size), 0)
        << std::strerror(errno);
    const timeval patience = {.tv_sec = 0, .tv_usec = 50'000};
    setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
  }
  ~Supervisor() {
    close(fd_);
    if (name_[0] == '/') unlink(name_.c_str());
  }

  // Returns the next datagram, or "" if none arrives.
  std::string Read() {
    char buffer[1024];
    const ssize_t size = recv(fd_, buffer, sizeof(buffer), 0);
    return size < 0 ? std::string() : std::string(buffer, static_cast<std::size_t>(size));
  }

 private:
  const std::string name_;
  const int fd_;
};

std::string Path() {
  return absl::StrCat("/tmp/quire_notify_test_", getpid(), ".sock");
}

TEST(NotifyTest, ReportsEveryStateToAFileSystemSocket) {
  Supervisor supervisor(Path());
  Notifier notifier({.socket = Path()});
  notifier.Status("loading\nthe model");
  EXPECT_EQ(supervisor.Read(), "STATUS=loading the model");
  notifier.Ready("serving story");
  EXPECT_EQ(supervisor.Read(), "READY=1\nSTATUS=serving story");
  notifier.Reloading();
  EXPECT_THAT(supervisor.Read(), MatchesRegex("RELOADING=1\nMONOTONIC_USEC=[1-9][0-9]*"));
  notifier.Stopping();
  EXPECT_EQ(supervisor.Read(), "STOPPING=1\nSTATUS=draining");
}

TEST(NotifyTest, ReportsToAnAbstractSocket) {
  const std::string name = absl::StrCat("@quire/notify_test/", getpid());
  Supervisor supervisor(name);
  Notifier notifier({.socket = name});
  notifier.Ready("serving story");
  EXPECT_THAT(supervisor.Read(), StartsWith("READY=1\n"));
}

TEST(NotifyTest, SupportsNamesOfMaximumLength) {
  std::string name = absl::StrCat("@quire/", getpid(), "/");
  name.resize(sizeof(sockaddr_un::sun_path), 'x');
  Supervisor supervisor(name);
  ASSERT_EQ(setenv("NOTIFY_SOCKET", name.c_str(), 1), 0);
  Notifier notifier(NotifyTargetFromEnvironment());
  unsetenv("NOTIFY_SOCKET");
  notifier.Ready("here");
  EXPECT_THAT(supervisor.Read(), StartsWith("READY=1\n"));
}

TEST(NotifyTest, SendsWatchdogPingsAtHalfTheInterval) {
  Supervisor supervisor(Path());
  Notifier notifier({.socket = Path(), .watchdog = absl::Seconds(10)});
  const absl::Time start = absl::UnixEpoch() + absl::Hours(1000);
  notifier.KeepAlive(start);
  EXPECT_EQ(supervisor.Read(), "WATCHDOG=1");
  notifier.KeepAlive(start + absl::Seconds(4.9));
  EXPECT_EQ(supervisor.Read(), "");
  notifier.KeepAlive(start + absl::Seconds(5));
  EXPECT_EQ(supervisor.Read(), "WATCHDOG=1");
}

TEST(NotifyTest, SendsNoPingsWithoutAWatchdog) {
  Supervisor supervisor(Path());
  Notifier notifier({.socket = Path()});
  notifier.KeepAlive(MonotonicNow());
  EXPECT_EQ(supervisor.Read(), "");
}

TEST(NotifyTest, DeadSupervisorDoesNotBlock) {
  Notifier gone({.socket = "/tmp/quire_notify_test_nobody"});
  gone.Ready("no supervisor hears it");
  Notifier none(NotifyTarget{});
  none.Ready("no supervisor is there");
}

TEST(NotifyTest, UnreadSupervisorSocketBlocksOnlyBriefly) {
  Supervisor supervisor(Path());
  Notifier notifier({.socket = Path()});
  const absl::Time start = MonotonicNow();
  // The datagram queue fills up at once. The first datagram without room waits for its one-second
  // timeout.
  int sent = 0;
  while (MonotonicNow() - start < absl::Seconds(1)) {
    notifier.Status(absl::StrCat("line ", ++sent));
  }
  EXPECT_LT(MonotonicNow() - start, absl::Seconds(5));
  EXPECT_EQ(supervisor.Read(), "STATUS=line 1");
}

class NotifyEnvironmentTest : public ::testing::Test {
 protected:
  void TearDown() override {
    for (const char* name : {"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"}) unsetenv(name);
  }
};

TEST_F(NotifyEnvironmentTest, NothingSetMeansNoSupervisor) {
  EXPECT_EQ(NotifyTargetFromEnvironment().socket, "");
}

TEST_F(NotifyEnvironmentTest, ReadsSocketAndWatchdog) {
  setenv("NOTIFY_SOCKET", "/run/systemd/notify", 1);
  setenv("WATCHDOG_USEC", "60000000", 1);
  setenv("WATCHDOG_PID", absl::StrCat(getpid()).c_str(), 1);
  const NotifyTarget target = NotifyTargetFromEnvironment();
  EXPECT_EQ(target.socket, "/run/systemd/notify");
  EXPECT_EQ(target.watchdog, absl::Seconds(60));
}

TEST_F(NotifyEnvironmentTest, IgnoresTheWatchdogOfAnotherProcess) {
  setenv("NOTIFY_SOCKET", "/run/systemd/notify", 1);
  setenv("WATCHDOG_USEC", "60000000", 1);
  setenv("WATCHDOG_PID", absl::StrCat(getpid() + 1).c_str(), 1);
  EXPECT_EQ(NotifyTargetFromEnvironment().watchdog, absl::InfiniteDuration());
}

TEST_F(NotifyEnvironmentTest, IgnoresInvalidValues) {
  for (const char* bad : {"vsock:2:1234", "relative/path", "/", "@"}) {
    setenv("NOTIFY_SOCKET", bad, 1);
    EXPECT_EQ(NotifyTargetFromEnvironment().socket, "") << bad;
  }
  setenv("NOTIFY_SOCKET",
         absl::StrCat("/", std::string(sizeof(sockaddr_un::sun_path), 'x')).c_str(), 1);
  EXPECT_EQ(NotifyTargetFromEnvironment().socket, "");
  setenv("NOTIFY_SOCKET", "/run/systemd/notify", 1);
  for (const char* bad : {"", "soon", "0", "-5", "1s"}) {
    setenv("WATCHDOG_USEC", bad, 1);
    EXPECT_EQ(NotifyTargetFromEnvironment().watchdog, absl::InfiniteDuration()) << bad;
  }
}

}  // namespace
}  // namespace quire::server
