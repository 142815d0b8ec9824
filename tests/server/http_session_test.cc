// A session on a transport whose writes complete when the test completes them.

#include "server/http/http_session.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <boost/asio/error.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <chrono>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"

namespace quire::server {
namespace {

using ::testing::ElementsAre;
using ::testing::StartsWith;

// The test's view of the peer.
struct HeldPeer {
  std::vector<std::string> writes;  // that have started
  Transport::Done write, read;      // pending operations
  boost::asio::mutable_buffer buffer;
  int max_writes_at_once = 0;
  bool is_closed = false;
};

class HeldTransport final : public Transport {
 public:
  HeldTransport(boost::asio::io_context* io, HeldPeer* peer) : io_(io), peer_(peer) {}

  boost::asio::any_io_executor executor() override { return io_->get_executor(); }
  void Handshake(std::function<void(Error)> done) override { done(Error()); }
  void ReadSome(boost::asio::mutable_buffer buffer, Done done) override {
    peer_->buffer = buffer;
    peer_->read = std::move(done);
  }
  void Write(boost::asio::const_buffer buffer, Done done) override {
    peer_->max_writes_at_once = std::max(peer_->max_writes_at_once, peer_->write ? 2 : 1);
    peer_->writes.emplace_back(static_cast<const char*>(buffer.data()), buffer.size());
    peer_->write = std::move(done);
  }
  std::string CertificateName() override { return ""; }
  void ShutdownSend() override {}
  void Close() override {
    peer_->is_closed = true;
    for (Done* done : {&peer_->read, &peer_->write}) {
      if (*done == nullptr) continue;
      boost::asio::post(*io_, [done = std::exchange(*done, nullptr)] {
        done(boost::asio::error::operation_aborted, 0);
      });
    }
  }

 private:
  boost::asio::io_context* const io_;
  HeldPeer* const peer_;
};

class HttpSessionTest : public ::testing::Test, public HttpSessionHost {
 protected:
  HttpSessionTest() {
    options_.max_body_bytes = [] { return std::int64_t{1000}; };
  }

  const HttpServerOptions& options() const override { return options_; }
  void Handle(const std::shared_ptr<HttpExchange>& exchange) override { handled_ = exchange; }
  bool closing() const override { return false; }
  void SetPhase(std::uint64_t, Phase) override {}
  void Remove(std::uint64_t) override { is_removed_ = true; }

  void Begin() {
    std::make_shared<HttpSession>(this, /*number=*/0, std::make_unique<HeldTransport>(&io_, &peer_),
                                  /*over_limit_message=*/"")
        ->Begin();
    Work();
  }
  // Runs everything that does not depend on the peer.
  void Work() {
    io_.restart();
    io_.poll();
  }
  void Feed(const std::string& text) {
    ASSERT_NE(peer_.read, nullptr) << "the session does not read";
    ASSERT_LE(text.size(), peer_.buffer.size());
    std::memcpy(peer_.buffer.data(), text.data(), text.size());
    std::exchange(peer_.read, nullptr)(Transport::Error(), text.size());
    Work();
  }
  void FinishWrite() {
    ASSERT_NE(peer_.write, nullptr) << "the session does not write";
    std::exchange(peer_.write, nullptr)(Transport::Error(), peer_.writes.back().size());
    Work();
  }

  boost::asio::io_context io_;
  HeldPeer peer_;
  HttpServerOptions options_;
  std::shared_ptr<HttpExchange> handled_;
  bool is_removed_ = false;
};

constexpr char kHeadOfThree[] =
    "POST /b HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nExpect: 100-continue\r\n\r\n";

TEST_F(HttpSessionTest, TimeoutDuringContinueWritesNothingMore) {
  options_.body_time = absl::Milliseconds(20);
  Begin();
  Feed(kHeadOfThree);
  EXPECT_THAT(peer_.writes, ElementsAre(StartsWith("HTTP/1.1 100 ")));
  io_.restart();
  io_.run_for(std::chrono::seconds(20));  // returns when the session ends
  EXPECT_EQ(peer_.max_writes_at_once, 1);
  EXPECT_TRUE(peer_.is_closed);
  EXPECT_TRUE(is_removed_);
}

TEST_F(HttpSessionTest, TimeoutAfterContinueIsAnswered) {
  options_.body_time = absl::Milliseconds(200);
  Begin();
  Feed(kHeadOfThree);
  FinishWrite();
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (peer_.writes.size() < 2 && std::chrono::steady_clock::now() < deadline) {
    io_.restart();
    io_.run_for(std::chrono::milliseconds(10));
  }
  EXPECT_THAT(peer_.writes, ElementsAre(StartsWith("HTTP/1.1 100 "), StartsWith("HTTP/1.1 408 ")));
  EXPECT_EQ(peer_.max_writes_at_once, 1);
}

// While a handler works, a read waits for the peer to close the connection. It may return body
// bytes that were not requested yet.
TEST_F(HttpSessionTest, BodyDuringContinueWaitsForTheContinue) {
  Begin();
  Feed("GET /a HTTP/1.1\r\nHost: x\r\n\r\n");
  ASSERT_NE(handled_, nullptr);
  Feed(kHeadOfThree);
  const std::shared_ptr<HttpExchange> first = std::exchange(handled_, nullptr);
  first->Answer({.body = "one"});
  FinishWrite();
  ASSERT_EQ(peer_.writes.size(), 2u);
  EXPECT_THAT(peer_.writes[1], StartsWith("HTTP/1.1 100 "));
  Feed("abc");
  EXPECT_EQ(handled_, nullptr);
  FinishWrite();
  ASSERT_NE(handled_, nullptr);
  EXPECT_EQ(handled_->request().body, "abc");
  EXPECT_EQ(handled_->request().path, "/b");
  handled_->Answer({.body = "two"});
  EXPECT_EQ(peer_.max_writes_at_once, 1);
  FinishWrite();
  EXPECT_EQ(peer_.writes.size(), 3u);
}

// A request whose header cannot be parsed must not be attributed the headers of the previous
// request.
TEST_F(HttpSessionTest, RejectionSeesTheRejectedHead) {
  std::vector<std::string> origins;
  options_.refuse = [&](Reason reason, absl::string_view, const HttpRequest& request) {
    origins.emplace_back(request.Header("origin"));
    return HttpAnswer{.status = RowOf(reason).http_status, .body = ""};
  };
  Begin();
  Feed("GET /a HTTP/1.1\r\nHost: x\r\nOrigin: first\r\n\r\n");
  std::exchange(handled_, nullptr)->Answer({.body = "one"});
  FinishWrite();
  Feed("POST /b HTTP/1.1\r\nHost: x\r\nOrigin: second\r\nContent-Length: 2000\r\n\r\n");
  EXPECT_THAT(origins, ElementsAre("second"));
  FinishWrite();
  origins.clear();
  handled_ = nullptr;
  peer_ = HeldPeer();
  Begin();
  Feed("GET /a HTTP/1.1\r\nHost: x\r\nOrigin: first\r\n\r\n");
  std::exchange(handled_, nullptr)->Answer({.body = "one"});
  FinishWrite();
  Feed("\x01\x02\r\n\r\n");
  EXPECT_THAT(origins, ElementsAre(""));
}

}  // namespace
}  // namespace quire::server
