#include "server/http/http_listener.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/http/ops_handlers.h"
#include "server/http/status_handlers.h"
#include "tests/server/http_client.h"
#include "tests/testing/temp_dir.h"

namespace quire::server {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

HttpListenerOptions Options(const std::string& address = "127.0.0.1:0") {
  return {.address = address, .num_threads = 2, .max_connections = 8};
}

// The operators' listener closes the connection after each answer.
std::string Ask(const std::string& address, const std::string& request) {
  HttpClient client(address);
  EXPECT_TRUE(client.Send(request));
  return client.ReadAll();
}

std::string Get(const std::string& address, const std::string& path) {
  return Ask(address, absl::StrCat("GET ", path, " HTTP/1.1\r\nHost: x\r\n\r\n"));
}

TEST(HttpListenerTest, ServesKnownPathsOnly) {
  auto listener = StartHttpListener(
      Options(), {{"/page", [](const HttpRequest&) { return HttpAnswer{.body = "hello\n"}; }}});
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

TEST(HttpListenerTest, NamesAPortThatIsInUse) {
  auto first = StartHttpListener(Options(), {});
  ASSERT_TRUE(first.ok());
  const auto second = StartHttpListener(Options((*first)->address()), {});
  EXPECT_EQ(second.status().code(), absl::StatusCode::kAlreadyExists);
  EXPECT_THAT(second.status().message(), HasSubstr((*first)->address()));
}

// No path accepts a body, so a client cannot keep a connection open by withholding one.
TEST(HttpListenerTest, RejectsBodiesUnread) {
  auto listener = StartHttpListener(Options(), {});
  ASSERT_TRUE(listener.ok()) << listener.status();
  const std::string& address = (*listener)->address();
  for (const char* const body : {"Transfer-Encoding: chunked", "Content-Length: 5"}) {
    HttpClient client(address);
    ASSERT_TRUE(client.Send(absl::StrCat("POST /livez HTTP/1.1\r\nHost: x\r\n", body, "\r\n\r\n")));
    EXPECT_EQ(client.Read().status, 413) << body;
  }
}

TEST(HttpListenerTest, AnswersHealthAndMetricsWhileAllConnectionsAreInUse) {
  HttpHandlers handlers;
  for (const char* const path : {"/livez", "/readyz", "/startupz", "/metrics", "/page"}) {
    handlers[path] = [path](const HttpRequest&) { return HttpAnswer{.body = path}; };
  }
  auto listener = StartHttpListener(Options(), std::move(handlers));
  ASSERT_TRUE(listener.ok()) << listener.status();
  const std::string& address = (*listener)->address();
  // These connections linger after a rejection, since the listener waits for the rest of their
  // bodies.
  std::vector<std::unique_ptr<HttpClient>> held;
  for (int i = 0; i < 8; ++i) {
    held.push_back(std::make_unique<HttpClient>(address));
    ASSERT_TRUE(held.back()->Send("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\n"));
    EXPECT_EQ(held.back()->Read().status, 413);
  }
  for (const char* const path : {"/livez", "/readyz", "/startupz", "/metrics"}) {
    EXPECT_THAT(Get(address, path), StartsWith("HTTP/1.1 200")) << path;
  }
}

TEST(OpsHandlersTest, AnswersMatchTheState) {
  ServingState state(absl::Seconds(1));
  probe::Registry registry;
  registry.AddCounter("quire_test_total", "A test.").Increment();
  const auto authenticator = Authenticator::Create({});
  ASSERT_TRUE(authenticator.ok());
  const HttpHandlers handlers = MakeOpsHandlers(&state, &registry, authenticator->get());
  const auto ask = [&](const char* path) { return handlers.at(path)({}); };
  const auto status = [&](const char* path) { return ask(path).status; };
  EXPECT_EQ(status("/livez"), 200);
  EXPECT_EQ(status("/startupz"), 503);
  EXPECT_EQ(ask("/readyz").body, "the model is loading\n");
  state.SetState(LifeState::kReady);
  EXPECT_EQ(status("/readyz"), 200);
  EXPECT_EQ(status("/startupz"), 200);
  state.SetDrainStarted(true);
  EXPECT_EQ(status("/readyz"), 503);
  EXPECT_EQ(status("/livez"), 200);
  state.SetState(LifeState::kFailed);
  EXPECT_EQ(status("/livez"), 503);
  state.SetState(LifeState::kReady);  // FAILED is final
  EXPECT_EQ(state.state(), LifeState::kFailed);
  EXPECT_THAT(ask("/metrics").body, HasSubstr("quire_test_total 1"));
  EXPECT_THAT(ask("/metrics").content_type, HasSubstr("version=0.0.4"));
  EXPECT_EQ(MakeOpsHandlers(&state, nullptr, authenticator->get()).count("/metrics"), 0u);
}

TEST(StatusHandlersTest, PreDrainEndsWhenAdmissionEnds) {
  ServingState state(absl::Seconds(1));
  StatusSources sources;
  sources.state = &state;
  const auto status = [&] { return StatusJson(sources, /*model=*/nullptr, absl::Now()); };
  state.SetDrainStarted(true);
  EXPECT_THAT(status(), HasSubstr(R"("state":"loading")"));
  state.SetState(LifeState::kReady);
  EXPECT_THAT(status(), HasSubstr(R"("state":"pre_drain")"));
  state.SetState(LifeState::kDraining);
  EXPECT_THAT(status(), HasSubstr(R"("state":"draining")"));
  state.SetDrainStarted(false);
  state.SetState(LifeState::kReady);
  EXPECT_THAT(status(), HasSubstr(R"("state":"ready")"));
}

TEST(StatusHandlersTest, PageLoadsNoOtherFile) {
  HttpHandlers handlers;
  AddStatusHandlers({}, &handlers);
  const std::string page = handlers.at("/")({}).body;
  EXPECT_THAT(page, StartsWith("<!doctype html>"));
  EXPECT_THAT(page, HasSubstr("<style>\n:root {"));
  EXPECT_THAT(page, HasSubstr("<script>\n'use strict';"));
  for (const char* reference : {"src=", "url(", "@import", "rel=\"stylesheet\""}) {
    EXPECT_THAT(page, ::testing::Not(HasSubstr(reference)));
  }
}

TEST(StatusHandlersTest, DrainWithoutDeadlineHasNoTimeLeft) {
  ServingState state(absl::Seconds(1));
  MachineClock clock;
  const DrainControl drain(&state, &clock, absl::Seconds(1), [] {});
  StatusSources sources;
  sources.state = &state;
  sources.drain = &drain;
  EXPECT_THAT(StatusJson(sources, /*model=*/nullptr, absl::Now()),
              HasSubstr(R"("drain_seconds_left":null)"));
}

// SHA-256 of "good", the metrics token, and of "other", which may only generate.
TEST(OpsHandlersTest, MetricsRequireAScopeAndHealthNone) {
  const testing::TempDir folder;
  const std::string tokens = folder.Write(
      "tokens",
      "770e607624d689265ca6c44884d0807d9b054d23c473c106c72be9de08b7376c ops metrics\n"
      "d9298a10d1b0735837dc4bd85dac641b0f3cef27a47e5d53a54f2f3f5b2fcffa ops generate\n");
  const auto authenticator =
      Authenticator::Create({.mode = AuthMode::kToken, .tokens_file = tokens});
  ASSERT_TRUE(authenticator.ok()) << authenticator.status();
  ServingState state(absl::Seconds(1));
  probe::Registry registry;
  const HttpHandlers handlers = MakeOpsHandlers(&state, &registry, authenticator->get());
  const auto status = [&](const char* path, const char* authorization) {
    HttpRequest request;
    if (*authorization != 0) request.headers.emplace_back("authorization", authorization);
    return handlers.at(path)(request).status;
  };
  EXPECT_EQ(status("/metrics", ""), 401);
  EXPECT_EQ(status("/metrics", "Bearer wrong"), 401);
  EXPECT_EQ(status("/metrics", "Bearer other"), 403);
  EXPECT_EQ(status("/metrics", "Bearer good"), 200);
  EXPECT_EQ(status("/livez", ""), 200);
}

}  // namespace
}  // namespace quire::server
