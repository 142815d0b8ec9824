#include "server/grpc/grpc_listener.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "server/config/options.h"
#include "server/grpc/health_calls.h"

namespace quire::server {
namespace {

using ::testing::HasSubstr;

GrpcListenerOptions Options(const std::string& address) {
  std::vector<std::string> errors;
  const auto config = LayeredConfig::Load({}, &errors);
  static PeerTable peers;
  static probe::Registry registry;
  return {.addresses = {address},
          .transport = ToOptions(*config).transport,
          .peers = &peers,
          .registry = &registry};
}

bool Connects(const std::string& address) {
  return grpc::CreateChannel(address, grpc::InsecureChannelCredentials())
      ->WaitForConnected(std::chrono::system_clock::now() + std::chrono::seconds(5));
}

TEST(GrpcListenerTest, ReportsTheFreePortItChose) {
  const auto listener = GrpcListener::Start(Options("127.0.0.1:0"), {});
  ASSERT_TRUE(listener.ok()) << listener.status();
  EXPECT_THAT((*listener)->addresses()[0], ::testing::Not(::testing::EndsWith(":0")));
  EXPECT_TRUE(Connects((*listener)->addresses()[0]));
}

TEST(GrpcListenerTest, NeverSharesAPort) {
  const auto first = GrpcListener::Start(Options("127.0.0.1:0"), {});
  ASSERT_TRUE(first.ok());
  const std::string address = (*first)->addresses()[0];
  const auto second = GrpcListener::Start(Options(address), {});
  EXPECT_EQ(second.status().code(), absl::StatusCode::kAlreadyExists);
  EXPECT_THAT(second.status().message(), HasSubstr(absl::StrCat(address, " is in use")));
}

TEST(GrpcListenerTest, ReplacesStaleSocketsOnly) {
  const std::string path = absl::StrCat("/tmp/quire_listener_test_", getpid(), ".sock");
  const std::string address = absl::StrCat("unix:", path);
  const int fd = socket(AF_UNIX, SOCK_STREAM, 0);
  sockaddr_un name = {};
  name.sun_family = AF_UNIX;
  std::strncpy(name.sun_path, path.c_str(), sizeof(name.sun_path) - 1);
  ASSERT_EQ(bind(fd, reinterpret_cast<const sockaddr*>(&name), sizeof(name)), 0);
  close(fd);  // the file remains as a stale socket
  GrpcListenerOptions options = Options(address);
  options.socket_mode = 0600;
  {
    const auto first = GrpcListener::Start(options, {});
    ASSERT_TRUE(first.ok()) << first.status();
    EXPECT_TRUE(Connects(address));
    struct stat info = {};
    ASSERT_EQ(stat(path.c_str(), &info), 0);
    EXPECT_EQ(info.st_mode & 0777, 0600u);
    const auto second = GrpcListener::Start(options, {});
    EXPECT_EQ(second.status().code(), absl::StatusCode::kAlreadyExists);
    EXPECT_TRUE(Connects(address));
  }
  EXPECT_NE(access(path.c_str(), F_OK), 0) << "the socket file outlives the listener";
}

TEST(GrpcListenerTest, DoesNotReplaceAPlainFile) {
  const std::string path = ::testing::TempDir() + "/not_a_socket";
  close(creat(path.c_str(), 0600));
  const auto listener = GrpcListener::Start(Options(absl::StrCat("unix:", path)), {});
  EXPECT_EQ(listener.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(access(path.c_str(), F_OK), 0);
}

// gRPC's callback threads end with the last channel, and none of them may release it.
TEST(GrpcListenerTest, StopsDuringACallToItself) {
  for (int i = 0; i < 100; ++i) {
    const auto listener = GrpcListener::Start(Options("127.0.0.1:0"), {});
    ASSERT_TRUE(listener.ok()) << listener.status();
    (*listener)->CheckReachable();
    (*listener)->KeepPolling();
  }
}

TEST(HealthCallsTest, OwnerReleasesTheLastChannel) {
  const auto listener = GrpcListener::Start(Options("127.0.0.1:0"), {});
  ASSERT_TRUE(listener.ok()) << listener.status();
  HealthCalls calls;
  int num_answers = 0;  // read after End
  const auto count = [&](const grpc::Status& status) {
    num_answers += status.error_code() == grpc::StatusCode::OK ||
                   status.error_code() == grpc::StatusCode::CANCELLED;
  };
  calls.Begin(grpc::CreateChannel((*listener)->addresses()[0], grpc::InsecureChannelCredentials()),
              absl::Seconds(60), count);
  calls.End();
  EXPECT_EQ(num_answers, 1);
  calls.End();
  EXPECT_EQ(num_answers, 1);
}

}  // namespace
}  // namespace quire::server
