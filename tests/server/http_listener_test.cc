#include "server/http/http_listener.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "server/http/ops_handlers.h"

namespace quire::server {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

// Everything that the server at `address` (127.0.0.1:port) answers to one request.
std::string Ask(const std::string& address, const std::string& request) {
  int port = 0;
  EXPECT_TRUE(absl::SimpleAtoi(address.substr(address.rfind(':') + 1), &port));
  sockaddr_in peer = {};
  peer.sin_family = AF_INET;
  peer.sin_port = htons(static_cast<std::uint16_t>(port));
  peer.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  EXPECT_EQ(connect(fd, reinterpret_cast<const sockaddr*>(&peer), sizeof(peer)), 0);
  EXPECT_EQ(send(fd, request.data(), request.size(), 0), static_cast<ssize_t>(request.size()));
  std::string answer;
  char buffer[4096];
  for (ssize_t n = recv(fd, buffer, sizeof(buffer), 0); n > 0;
       n = recv(fd, buffer, sizeof(buffer), 0)) {
    answer.append(buffer, static_cast<std::size_t>(n));
  }
  close(fd);
  return answer;
}

std::string Get(const std::string& address, const std::string& path) {
  return Ask(address, absl::StrCat("GET ", path, " HTTP/1.1\r\nHost: x\r\n\r\n"));
}

TEST(HttpListenerTest, ServesPathsAndRefusesTheRest) {
  auto listener = HttpListener::Start(
      "127.0.0.1:0", 2, {{"/page", [] { return HttpAnswer{.body = "hello\n"}; }}});
  ASSERT_TRUE(listener.ok()) << listener.status();
  const std::string& address = (*listener)->address();
  EXPECT_THAT(Get(address, "/page"), StartsWith("HTTP/1.1 200 OK\r\n"));
  EXPECT_THAT(Get(address, "/page"), HasSubstr("\r\n\r\nhello\n"));
  EXPECT_THAT(Get(address, "/page?x=1"), StartsWith("HTTP/1.1 200"));
  EXPECT_THAT(Get(address, "/other"), StartsWith("HTTP/1.1 404"));
  EXPECT_THAT(Ask(address, "HEAD /page HTTP/1.1\r\nHost: x\r\n\r\n"),
              ::testing::Not(HasSubstr("hello")));
  EXPECT_THAT(Ask(address, "POST /page HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n"),
              StartsWith("HTTP/1.1 405"));
}

TEST(HttpListenerTest, APortThatIsTakenIsAnErrorThatNamesIt) {
  auto first = HttpListener::Start("127.0.0.1:0", 2, {});
  ASSERT_TRUE(first.ok());
  const auto second = HttpListener::Start((*first)->address(), 2, {});
  EXPECT_EQ(second.status().code(), absl::StatusCode::kAlreadyExists);
  EXPECT_THAT(second.status().message(), HasSubstr((*first)->address()));
}

TEST(OpsHandlersTest, AnswersFollowTheState) {
  ServingState state(absl::Seconds(1));
  probe::Registry registry;
  registry.AddCounter("quire_test_total", "A test.").Increment();
  const HttpHandlers handlers = MakeOpsHandlers(&state, &registry);
  const auto status = [&](const char* path) { return handlers.at(path)().status; };
  EXPECT_EQ(status("/livez"), 200);
  EXPECT_EQ(status("/startupz"), 503);
  EXPECT_EQ(handlers.at("/readyz")().body, "the model is loading\n");
  state.SetState(LifeState::kReady);
  EXPECT_EQ(status("/readyz"), 200);
  EXPECT_EQ(status("/startupz"), 200);
  state.SetLeaving(true);
  EXPECT_EQ(status("/readyz"), 503);
  EXPECT_EQ(status("/livez"), 200);
  state.SetState(LifeState::kFailed);
  EXPECT_EQ(status("/livez"), 503);
  state.SetState(LifeState::kReady);  // FAILED is final
  EXPECT_EQ(state.state(), LifeState::kFailed);
  EXPECT_THAT(handlers.at("/metrics")().body, HasSubstr("quire_test_total 1"));
  EXPECT_THAT(handlers.at("/metrics")().content_type, HasSubstr("version=0.0.4"));
  EXPECT_EQ(MakeOpsHandlers(&state, nullptr).count("/metrics"), 0u);
}

}  // namespace
}  // namespace quire::server
