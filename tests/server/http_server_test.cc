#include "server/http/http_server.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/file_descriptor.h"
#include "tests/server/http_client.h"
#include "tests/testing/waiting.h"

namespace quire::server {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr std::int64_t kMaxBody = 1000;

// A handler that echoes the request's body for /echo, streams three pieces for /stream, breaks off
// a stream for /cut, and does not respond to /hold until the peer has disconnected.
class Site {
 public:
  void Handle(const std::shared_ptr<HttpExchange>& exchange) {
    const HttpRequest& request = exchange->request();
    if (request.path == "/stream" || request.path == "/cut") {
      exchange->BeginStream({.content_type = "text/event-stream", .body = ""});
      return WritePieces(exchange, 3, request.path == "/stream");
    }
    if (request.path == "/hold") {
      held_.fetch_add(1);
      return exchange->OnGone([this] { gone_.fetch_add(1); });
    }
    // Code of a library may throw.
    if (request.path == "/throw") (void)std::string().at(1);
    if (request.path == "/throw-later") {
      held_.fetch_add(1);
      exchange->OnGone([this] { gone_.fetch_add(1); });
      exchange->BeginStream({.body = ""});
      return exchange->Write("begun\n", [] { (void)std::string().at(1); });
    }
    exchange->Answer({.body = absl::StrCat(request.method, " ", request.path, "?", request.query,
                                           " ", request.Header("x-test"), " ", request.body)});
  }

  bool WaitGone(int count) const {
    return testing::WaitUntil([&] { return gone_.load() >= count; }) && gone_.load() == count;
  }
  bool WaitHeld(int count) const {
    return testing::WaitUntil([&] { return held_.load() == count; });
  }
  int gone() const { return gone_.load(); }

 private:
  static void WritePieces(const std::shared_ptr<HttpExchange>& exchange, int left, bool whole) {
    if (left == 0) return exchange->EndStream(whole);
    exchange->Write(absl::StrCat("piece ", left, "\n"),
                    [=] { WritePieces(exchange, left - 1, whole); });
  }

  std::atomic<int> held_{0}, gone_{0};
};

class HttpServerTest : public ::testing::Test {
 protected:
  static HttpServerOptions Options() {
    HttpServerOptions options;
    options.address = "127.0.0.1:0";
    options.max_body_bytes = [] { return kMaxBody; };
    return options;
  }

  void Start(HttpServerOptions options) {
    auto server = HttpServer::Start(
        std::move(options),
        [this](const std::shared_ptr<HttpExchange>& exchange) { site_.Handle(exchange); });
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
  }
  const std::string& address() const { return server_->address(); }
  bool ConnectionsBecome(int count) const {
    return testing::WaitUntil([&] { return server_->num_connections() == count; });
  }

  Site site_;
  std::unique_ptr<HttpServer> server_;
};

TEST_F(HttpServerTest, OneConnectionServesManyRequests) {
  Start(Options());
  HttpClient client(address());
  for (int i = 0; i < 3; ++i) {
    const HttpReply reply =
        client.Ask("POST", absl::StrCat("/echo%20", i, "?q=1"), "body", "X-Test: here\r\n");
    EXPECT_EQ(reply.status, 200);
    EXPECT_EQ(reply.body, absl::StrCat("POST /echo ", i, "?q=1 here body"));
    EXPECT_THAT(reply.head, HasSubstr("Connection: keep-alive"));
  }
  EXPECT_THAT(client.Ask("GET", "/echo", "", "Connection: close\r\n").head,
              HasSubstr("Connection: close"));
  EXPECT_EQ(client.ReadAll(), "");
}

TEST_F(HttpServerTest, ListensOnAllAddressesOfAName) {
  HttpServerOptions options = Options();
  options.address = "*:0";
  Start(std::move(options));
  HttpClient client(address());
  EXPECT_EQ(client.Ask("GET", "/echo").status, 200);
  int port = 0;
  ASSERT_TRUE(absl::SimpleAtoi(address().substr(address().rfind(':') + 1), &port));
  const FileDescriptor six(socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in6 own = {};
  own.sin6_family = AF_INET6;
  own.sin6_addr = in6addr_loopback;
  if (bind(six.fd, reinterpret_cast<const sockaddr*>(&own), sizeof(own)) != 0) {
    GTEST_SKIP() << "this machine has no IPv6";
  }
  sockaddr_in6 peer = own;
  peer.sin6_port = htons(static_cast<std::uint16_t>(port));
  EXPECT_EQ(connect(six.fd, reinterpret_cast<const sockaddr*>(&peer), sizeof(peer)), 0);
  EXPECT_TRUE(ConnectionsBecome(2));
}

TEST_F(HttpServerTest, PipelinedRequestsAreAnsweredInOrder) {
  Start(Options());
  HttpClient client(address());
  ASSERT_TRUE(client.Send("GET /a HTTP/1.1\r\nHost: x\r\n\r\nGET /b HTTP/1.1\r\nHost: x\r\n\r\n"));
  EXPECT_EQ(client.Read().body, "GET /a?  ");
  EXPECT_EQ(client.Read().body, "GET /b?  ");
}

TEST_F(HttpServerTest, ReadsBodiesByteByByteChunkedAndAfterContinue) {
  Start(Options());
  HttpClient slow(address());
  for (const char c : std::string("POST /e HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabc")) {
    ASSERT_TRUE(slow.Send(absl::string_view(&c, 1)));
  }
  EXPECT_EQ(slow.Read().body, "POST /e?  abc");
  ASSERT_TRUE(
      slow.Send("POST /e HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
                "2\r\nab\r\n1\r\nc\r\n0\r\n\r\n"));
  EXPECT_EQ(slow.Read().body, "POST /e?  abc");
  ASSERT_TRUE(
      slow.Send("POST /e HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n"
                "Expect: 100-continue\r\n\r\n"));
  EXPECT_EQ(slow.Read().status, 100);
  ASSERT_TRUE(slow.Send("abc"));
  EXPECT_EQ(slow.Read().body, "POST /e?  abc");
}

TEST_F(HttpServerTest, CompleteStreamsEndWithTheLastChunkAndBrokenOnesWithoutIt) {
  Start(Options());
  HttpClient client(address());
  const HttpReply whole = client.Ask("GET", "/stream");
  EXPECT_TRUE(whole.is_whole);
  EXPECT_EQ(whole.body, "piece 3\npiece 2\npiece 1\n");
  const HttpReply cut = client.Ask("GET", "/cut");
  EXPECT_FALSE(cut.is_whole);
  EXPECT_EQ(cut.body, "piece 3\npiece 2\npiece 1\n");
  HttpClient old(address());
  ASSERT_TRUE(old.Send("GET /stream HTTP/1.0\r\n\r\n"));
  EXPECT_THAT(old.ReadAll(), ::testing::EndsWith("\r\n\r\npiece 3\npiece 2\npiece 1\n"));
}

TEST_F(HttpServerTest, RespondsAndClosesAboveTheLimitsOfHeadAndBody) {
  Start(Options());
  HttpClient body(address());
  const HttpReply large = body.Ask("POST", "/e", std::string(kMaxBody + 1, 'x'));
  EXPECT_EQ(large.status, 413);
  EXPECT_THAT(large.body, HasSubstr("1000"));
  EXPECT_EQ(body.ReadAll(), "");
  HttpClient full(address());
  EXPECT_EQ(full.Ask("POST", "/e", std::string(kMaxBody, 'x')).status, 200);
  HttpClient head(address());
  EXPECT_EQ(head.Ask("GET", "/e", "", absl::StrCat("X: ", std::string(20000, 'y'), "\r\n")).status,
            431);
  HttpClient flood(address());
  std::string headers;
  for (int i = 0; i < 5000; ++i) absl::StrAppend(&headers, "H", i, ": v\r\n");
  EXPECT_EQ(flood.Ask("GET", "/e", "", headers).status, 431);
}

TEST_F(HttpServerTest, HeadsOfChunksAndTrailersAreBoundedToo) {
  Start(Options());
  for (const absl::string_view begin : {"1;", "1;a=\"", "0\r\nA: ", "0\r\n"}) {
    HttpClient endless(address());
    ASSERT_TRUE(endless.Send("POST /e HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"));
    ASSERT_TRUE(endless.Send(begin));
    const std::string piece = begin == "0\r\n" ? "A: b\r\nC: dddddddddd\r\n" : "aaaaaaaaaaaaaaaa";
    std::size_t sent = 0;
    // The bytes are more than the limit and less than what the server reads while it lingers.
    while (sent < 200000 && endless.Send(piece)) sent += piece.size();
    EXPECT_EQ(endless.Read().status, 431) << begin;
  }
  HttpClient fine(address());
  ASSERT_TRUE(fine.Send("POST /e HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"));
  ASSERT_TRUE(fine.Send(absl::StrCat("2;x=", std::string(9000, 'y'), "\r\nab\r\n")));
  ASSERT_TRUE(fine.Send(absl::StrCat("0\r\nT: ", std::string(9000, 'z'), "\r\n\r\n")));
  EXPECT_EQ(fine.Read().body, "POST /e?  ab");
}

TEST_F(HttpServerTest, BodiesOfRejectedHeadsAreNotRead) {
  HttpServerOptions options = Options();
  options.check_before_body = [](const HttpRequest& head) -> std::optional<HttpAnswer> {
    if (head.Header("x-test") == "welcome") return std::nullopt;
    return HttpAnswer{.status = 401, .body = "who is there?"};
  };
  Start(std::move(options));
  const std::string rest = "Content-Length: 900\r\nExpect: 100-continue\r\n\r\n";
  HttpClient stranger(address());
  ASSERT_TRUE(stranger.Send("POST /e HTTP/1.1\r\nHost: x\r\n" + rest));
  EXPECT_EQ(stranger.Read().status, 401);
  EXPECT_EQ(stranger.ReadAll(), "");
  HttpClient guest(address());
  ASSERT_TRUE(guest.Send("POST /e HTTP/1.1\r\nHost: x\r\nX-Test: welcome\r\n" + rest));
  EXPECT_EQ(guest.Read().status, 100);
  ASSERT_TRUE(guest.Send(std::string(900, 'x')));
  EXPECT_EQ(guest.Read().status, 200);
}

TEST_F(HttpServerTest, SlowHeadsBodiesAndHandshakesTimeOut) {
  HttpServerOptions options = Options();
  options.head_time = absl::Milliseconds(50);
  options.body_time = absl::Milliseconds(50);
  options.idle_time = absl::Milliseconds(50);
  Start(std::move(options));
  HttpClient silent(address());
  EXPECT_EQ(silent.ReadAll(), "");
  HttpClient head(address());
  ASSERT_TRUE(head.Send("GET / HTTP/1.1\r\nHos"));
  EXPECT_THAT(head.ReadAll(), AllOf(StartsWith("HTTP/1.1 408"),
                                    HasSubstr("the head of the request is not complete 50ms")));
  head.Close();
  HttpClient body(address());
  ASSERT_TRUE(body.Send("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\nabc"));
  EXPECT_THAT(body.ReadAll(), AllOf(StartsWith("HTTP/1.1 408"),
                                    HasSubstr("the body of the request is not complete 50ms")));
  body.Close();
  HttpClient idle(address());
  EXPECT_EQ(idle.Ask("GET", "/e").status, 200);
  EXPECT_EQ(idle.ReadAll(), "");
  EXPECT_TRUE(ConnectionsBecome(0));
}

TEST_F(HttpServerTest, HandlersAreNotifiedOfDisconnectedPeers) {
  Start(Options());
  for (const bool reset : {false, true}) {
    HttpClient client(address());
    ASSERT_TRUE(client.SendRequest("GET", "/hold", ""));
    ASSERT_TRUE(site_.WaitHeld(reset ? 2 : 1));
    reset ? client.Reset() : client.Close();
    EXPECT_TRUE(site_.WaitGone(reset ? 2 : 1));
  }
  EXPECT_TRUE(ConnectionsBecome(0));
}

TEST_F(HttpServerTest, DetectsDisconnectAfterEarlyBytes) {
  Start(Options());
  HttpClient client(address());
  ASSERT_TRUE(client.SendRequest("GET", "/hold", ""));
  ASSERT_TRUE(site_.WaitHeld(1));
  ASSERT_TRUE(client.Send("GET /next HTTP/1.1\r\nHo"));
  // Early bytes do not end the connection. The server has probably read them by now.
  EXPECT_TRUE(testing::Stays([&] { return site_.gone() == 0; }, absl::Milliseconds(50)));
  client.Close();
  EXPECT_TRUE(site_.WaitGone(1));
  EXPECT_TRUE(ConnectionsBecome(0));
}

TEST_F(HttpServerTest, HandlerThatThrowsClosesOnlyItsConnection) {
  Start(Options());
  for (int i = 0; i < 3; ++i) {
    HttpClient client(address());
    ASSERT_TRUE(client.SendRequest("GET", "/throw", ""));
    EXPECT_EQ(client.ReadAll(), "");
  }
  HttpClient neighbour(address());
  EXPECT_EQ(neighbour.Ask("GET", "/e").status, 200);
}

TEST_F(HttpServerTest, CallbackThatThrowsClosesItsConnectionAndNotifiesTheHandler) {
  Start(Options());
  for (int i = 1; i <= 3; ++i) {
    HttpClient client(address());
    const HttpReply cut = client.Ask("GET", "/throw-later");
    EXPECT_FALSE(cut.is_whole);
    EXPECT_EQ(cut.body, "begun\n");
    EXPECT_TRUE(site_.WaitGone(i));
  }
  EXPECT_TRUE(ConnectionsBecome(0));
}

TEST_F(HttpServerTest, SilentConnectionsAreEvictedForNewOnes) {
  HttpServerOptions options = Options();
  options.max_connections = 8;
  Start(std::move(options));
  HttpClient busy(address());
  ASSERT_TRUE(busy.SendRequest("GET", "/hold", ""));
  ASSERT_TRUE(site_.WaitHeld(1));
  std::vector<std::unique_ptr<HttpClient>> silent;
  for (int i = 0; i < 100; ++i) {
    silent.push_back(std::make_unique<HttpClient>(address()));
    if (i % 10 != 9) continue;
    HttpClient fresh(address());
    EXPECT_EQ(fresh.Ask("GET", "/e").status, 200) << i;
  }
  EXPECT_EQ(silent[0]->ReadAll(), "");
  EXPECT_LE(server_->num_connections(), 8 + 64);
  EXPECT_TRUE(busy.Send("x"));  // its head has arrived, so it is not closed
  busy.Close();
  EXPECT_TRUE(site_.WaitGone(1));
}

TEST_F(HttpServerTest, LongestIdleConnectionIsEvictedFirst) {
  HttpServerOptions options = Options();
  options.max_connections = 3;
  Start(std::move(options));
  HttpClient idle(address()), half(address()), silent(address());
  EXPECT_TRUE(ConnectionsBecome(3));
  EXPECT_EQ(idle.Ask("GET", "/e").status, 200);
  EXPECT_EQ(half.Ask("GET", "/e").status, 200);
  ASSERT_TRUE(half.Send("GET /e HTTP/1.1\r\nHost: x\r\n"));
  HttpClient first(address());
  EXPECT_EQ(first.Ask("GET", "/first").status, 200);
  EXPECT_EQ(silent.ReadAll(), "");  // the idle connection has sent a request since
  EXPECT_EQ(idle.Ask("GET", "/e").status, 200);
  HttpClient second(address());
  EXPECT_EQ(second.Ask("GET", "/second").status, 200);
  EXPECT_EQ(first.ReadAll(), "");  // the other connection has sent a request since
  // A connection that has started its next request is not evicted.
  ASSERT_TRUE(half.Send("\r\n"));
  EXPECT_EQ(half.Read().body, "GET /e?  ");
}

TEST_F(HttpServerTest, ConnectionsAboveTheLimitGetAnError) {
  HttpServerOptions options = Options();
  options.max_connections = 2;
  Start(std::move(options));
  HttpClient a(address()), b(address());
  ASSERT_TRUE(a.SendRequest("GET", "/hold", ""));
  ASSERT_TRUE(b.SendRequest("GET", "/hold", ""));
  ASSERT_TRUE(site_.WaitHeld(2));
  HttpClient c(address());
  const HttpReply refused = c.Ask("GET", "/e");
  EXPECT_EQ(refused.status, 503);
  EXPECT_THAT(refused.body, HasSubstr("all 2 connections"));
  a.Close();
  EXPECT_EQ(c.ReadAll(), "");
  c.Close();
  EXPECT_TRUE(ConnectionsBecome(1));
  HttpClient d(address());
  EXPECT_EQ(d.Ask("GET", "/e").status, 200);
}

TEST_F(HttpServerTest, ConnectionsWithStalledBodiesAreEvicted) {
  HttpServerOptions options = Options();
  options.max_connections = 4;
  Start(std::move(options));
  std::vector<std::unique_ptr<HttpClient>> stopped;
  for (int i = 0; i < 4; ++i) {
    stopped.push_back(std::make_unique<HttpClient>(address()));
    ASSERT_TRUE(
        stopped.back()->Send("POST /e HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"));
  }
  ASSERT_TRUE(ConnectionsBecome(4));
  EXPECT_TRUE(testing::WaitUntil([&] {
    HttpClient fresh(address());
    return fresh.Ask("GET", "/e").status == 200;
  }));
  EXPECT_EQ(stopped[0]->ReadAll(), "");  // the oldest
}

TEST_F(HttpServerTest, BodySentByteByByteTimesOut) {
  HttpServerOptions options = Options();
  options.body_time = absl::Milliseconds(500);
  Start(std::move(options));
  HttpClient slow(address());
  ASSERT_TRUE(slow.Send("POST /e HTTP/1.1\r\nHost: x\r\nContent-Length: 900\r\n\r\n"));
  int sent = 0;
  while (sent < 899 && slow.Send("x")) {
    ++sent;
    testing::Pace(absl::Milliseconds(50));
  }
  EXPECT_LT(sent, 899);
  EXPECT_THAT(slow.ReadAll(), StartsWith("HTTP/1.1 408"));
}

TEST_F(HttpServerTest, StalledBodyTimesOutBeforeTheBodyTimeout) {
  HttpServerOptions options = Options();
  options.body_silence_time = absl::Milliseconds(50);
  Start(std::move(options));
  HttpClient stopped(address());
  ASSERT_TRUE(stopped.Send("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\nabc"));
  EXPECT_THAT(stopped.ReadAll(), AllOf(StartsWith("HTTP/1.1 408"),
                                       HasSubstr("no byte of the body has arrived for 50ms")));
}

TEST_F(HttpServerTest, ProbesAreAnsweredAtTheConnectionLimit) {
  HttpServerOptions options = Options();
  options.max_connections = 2;
  options.is_probe = [](const HttpRequest& head) { return head.path == "/probe"; };
  Start(std::move(options));
  HttpClient a(address()), b(address());
  ASSERT_TRUE(a.SendRequest("GET", "/hold", ""));
  ASSERT_TRUE(b.SendRequest("GET", "/hold", ""));
  ASSERT_TRUE(site_.WaitHeld(2));
  std::vector<std::unique_ptr<HttpClient>> crowd;
  for (int i = 0; i < 200; ++i) {
    crowd.push_back(std::make_unique<HttpClient>(address()));
    // One third sends nothing, one third does not read its error response, one third does not send
    // its body.
    if (i % 3 == 1) crowd.back()->SendRequest("GET", "/e", "");
    if (i % 3 == 2) {
      crowd.back()->Send("POST /probe HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\n");
    }
    if (i % 20 != 19) continue;
    HttpClient probe(address());
    const HttpReply reply = probe.Ask("GET", "/probe");
    EXPECT_EQ(reply.status, 200) << i;
    EXPECT_THAT(reply.head, HasSubstr("Connection: close"));
    HttpClient other(address());
    EXPECT_EQ(other.Ask("GET", "/e").status, 503) << i;
  }
  EXPECT_LE(server_->num_connections(), 2 + 2 * 64);
  EXPECT_EQ(site_.gone(), 0);
}

TEST_F(HttpServerTest, EachAddressHasItsOwnLimit) {
  HttpServerOptions options = Options();
  options.max_connections = 8;
  options.max_connections_per_address = 2;
  Start(std::move(options));
  HttpClient a(address()), b(address());
  ASSERT_TRUE(a.SendRequest("GET", "/hold", ""));
  ASSERT_TRUE(b.SendRequest("GET", "/hold", ""));
  ASSERT_TRUE(site_.WaitHeld(2));
  HttpClient third(address());
  const HttpReply refused = third.Ask("GET", "/e");
  EXPECT_EQ(refused.status, 503);
  EXPECT_THAT(refused.body, HasSubstr("127.0.0.1 uses all 2 connections"));
  HttpClient neighbour(address(), "127.0.0.2");
  EXPECT_EQ(neighbour.Ask("GET", "/e").status, 200);
  a.Close();
  EXPECT_TRUE(site_.WaitGone(1));
  // The server evicts an idle connection of the same address for the next one.
  HttpClient idle(address());
  EXPECT_TRUE(testing::WaitUntil([&] {
    HttpClient fresh(address());
    return fresh.Ask("GET", "/e").status == 200;
  }));
  EXPECT_EQ(neighbour.Ask("GET", "/e").status, 200);  // its address differs, so it is not evicted
}

// Opens all descriptors of this process, which contains client and server, except those that the
// test closes.
class Descriptors {
 public:
  Descriptors() {
    getrlimit(RLIMIT_NOFILE, &before_);
    const rlimit low = {.rlim_cur = std::min<rlim_t>(before_.rlim_cur, 256),
                        .rlim_max = before_.rlim_max};
    setrlimit(RLIMIT_NOFILE, &low);
    for (int fd; (fd = open("/dev/null", O_RDONLY | O_CLOEXEC)) >= 0;) taken_.push_back(fd);
  }
  ~Descriptors() {
    while (!taken_.empty()) GiveBack();
    setrlimit(RLIMIT_NOFILE, &before_);
  }
  void GiveBack() {
    close(taken_.back());
    taken_.pop_back();
  }

 private:
  rlimit before_ = {};
  std::vector<int> taken_;
};

TEST_F(HttpServerTest, ClosesConnectionsWhileThereAreNoDescriptors) {
  Start(Options());
  {
    Descriptors descriptors;
    descriptors.GiveBack();  // for the client
    for (int i = 0; i < 3; ++i) {
      HttpClient client(address());
      const absl::Time begin = MonotonicNow();
      EXPECT_EQ(client.ReadAll(), "");
      EXPECT_LT(MonotonicNow() - begin, absl::Seconds(10)) << "the client gave up, not the server";
      EXPECT_EQ(server_->num_connections(), 0);
    }
  }
  EXPECT_TRUE(testing::WaitUntil([&] {
    HttpClient fresh(address());
    return fresh.Ask("GET", "/e").status == 200;
  }));
}

TEST_F(HttpServerTest, EvictsSilentConnectionsWhileThereAreNoDescriptors) {
  Start(Options());
  HttpClient silent(address());
  ASSERT_TRUE(ConnectionsBecome(1));
  Descriptors descriptors;
  descriptors.GiveBack();  // for the client
  HttpClient fresh(address());
  EXPECT_EQ(fresh.Ask("GET", "/e").status, 200);
  EXPECT_EQ(silent.ReadAll(), "");
}

TEST_F(HttpServerTest, ShutdownCompletesResponsesThenClosesAllConnections) {
  Start(Options());
  HttpClient idle(address()), held(address());
  EXPECT_EQ(idle.Ask("GET", "/e").status, 200);
  ASSERT_TRUE(held.SendRequest("GET", "/hold", ""));
  ASSERT_TRUE(site_.WaitHeld(1));
  const absl::Time begin = MonotonicNow();
  server_->Shutdown(begin + absl::Milliseconds(100));
  EXPECT_GE(MonotonicNow() - begin, absl::Milliseconds(90));
  EXPECT_TRUE(site_.WaitGone(1));
  EXPECT_EQ(idle.ReadAll(), "");
  EXPECT_EQ(server_->num_connections(), 0);
}

TEST_F(HttpServerTest, RejectsAddressesThatCannotBeServed) {
  Start(Options());
  HttpServerOptions taken = Options();
  taken.address = address();
  EXPECT_EQ(HttpServer::Start(std::move(taken), [](const auto&) {}).status().code(),
            absl::StatusCode::kAlreadyExists);
  HttpServerOptions foreign = Options();
  foreign.address = "192.0.2.1:0";
  EXPECT_EQ(HttpServer::Start(std::move(foreign), [](const auto&) {}).status().code(),
            absl::StatusCode::kInvalidArgument);
}

// Sends modified requests. The server responds or closes the connection, and it serves a neighbour
// all the time.
TEST_F(HttpServerTest, MalformedRequestsDoNotAffectOtherConnections) {
  HttpServerOptions options = Options();
  options.head_time = absl::Milliseconds(20);
  options.body_time = absl::Milliseconds(20);
  Start(std::move(options));
  const std::string good =
      "POST /e?q HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\nTransfer-Encoding: "
      "identity\r\n\r\nabcd";
  std::mt19937 random(20261122);
  for (int i = 0; i < 2000; ++i) {
    std::string bytes = good;
    for (auto edits = random() % 4; edits > 0; --edits) {
      const std::size_t at = random() % bytes.size();
      switch (random() % 3) {
        case 0:
          bytes[at] = static_cast<char>(random());
          break;
        case 1:
          bytes.erase(at, random() % 8);
          break;
        default:
          bytes.insert(at, std::string(random() % 8, static_cast<char>(random())));
      }
      if (bytes.empty()) bytes.assign(1, 'x');  // g++ 12 warns of a copy of a literal here
    }
    HttpClient client(address());
    client.Send(bytes);
    client.Reset();
    if (i % 100 == 0) {
      HttpClient fresh(address());
      EXPECT_EQ(fresh.Ask("GET", "/e").status, 200) << i;
    }
  }
  EXPECT_TRUE(ConnectionsBecome(0)) << server_->num_connections();
}

}  // namespace
}  // namespace quire::server
