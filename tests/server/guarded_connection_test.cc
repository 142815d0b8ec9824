// A connection between a client and a stand-in for gRPC. The test controls both ends and the time.

#include "server/edge/guarded_connection.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <boost/asio/error.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/local/connect_pair.hpp>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/clock.h"
#include "base/file_descriptor.h"
#include "tests/server/http2_frames.h"
#include "tests/testing/waiting.h"

namespace quire::server {
namespace {

using http2::Frame;
using http2::kData;
using http2::kEndHeaders;
using http2::kHeaders;
using http2::kPreface;
using ::testing::HasSubstr;
using Local = boost::asio::local::stream_protocol;

// A call whose message of 100 bytes is incomplete.
std::string Begun(std::uint32_t stream) {
  return absl::StrCat(Frame(kHeaders, kEndHeaders, stream, "h"),
                      Frame(kData, 0, stream, absl::string_view("\0\0\0\0\x64half", 9)));
}

const std::string kGuardSettings = SettingsFrame(10, 1000);

struct Pair {
  explicit Pair(boost::asio::io_context& io) : ours(io), theirs(io) {
    boost::asio::local::connect_pair(ours, theirs);
    ours.non_blocking(true);
  }
  Local::socket ours, theirs;
};

class ConnectionFixture : public ::testing::Test {
 protected:
  ConnectionFixture() {
    host_.connect = [this](std::uint64_t, const boost::asio::any_io_executor&,
                           Peer) -> absl::StatusOr<GuardedConnectionHost::ToGrpc> {
      if (!connect_.ok()) return connect_;
      is_connected_ = true;
      phase_ = Phase::kBusy;
      to_grpc_ = FileDescriptor(dup(grpc_.theirs.native_handle()));
      return GuardedConnectionHost::ToGrpc{.socket = std::move(grpc_.theirs), .name = "name"};
    };
    host_.settings = kGuardSettings;
    host_.add_unfinished_bytes = [this](std::int64_t bytes) { unfinished_ += bytes; };
    host_.count_closed = [](const Peer&, CloseCause, absl::string_view) {};
    host_.pace = [this](std::uint64_t, double) {
      has_waited_ = true;
      return absl::Hours(1);
    };
    host_.set_phase = [this](std::uint64_t, Phase phase) { phase_ = phase; };
    host_.left = [this](std::uint64_t, const std::string&) { has_left_ = true; };
    FrameLimits limits = {.max_streams = 10,
                          .max_header_block_bytes = 1000,
                          .max_resets = 10,
                          .max_control_frames = 10,
                          .max_window_updates = 10,
                          .max_header_bytes = 1000,
                          .max_pings = 4,
                          .ping_interval = absl::Hours(1),
                          .max_unfinished_bytes = 1000,
                          .message_timeout = absl::Seconds(60)};
    connection_ = std::make_shared<GuardedConnection>(
        &host_, 1, NewPlainTransport(std::move(client_.theirs)), Peer{}, limits,
        ConnectionTimes{.preface = absl::Seconds(10),
                        .write_stall = absl::Minutes(10),
                        .age = absl::Minutes(5)});
    connection_->Begin(MonotonicNow());
  }

  ~ConnectionFixture() override {
    connection_->Abort();
    connection_.reset();
    EXPECT_TRUE(Becomes([this] { return has_left_; }));
    EXPECT_EQ(unfinished_, 0);
  }

  static void Send(Pair& pair, absl::string_view bytes) {
    EXPECT_EQ(pair.ours.write_some(boost::asio::buffer(bytes.data(), bytes.size())), bytes.size());
  }
  // Sends the client's bytes and waits until gRPC has received them.
  void SendThrough(absl::string_view bytes) {
    Send(client_, bytes);
    EXPECT_TRUE(Becomes([&] { return absl::EndsWith(from_client_, bytes); }));
    from_client_.clear();
  }
  bool Becomes(absl::FunctionRef<bool()> condition) {
    return testing::WaitUntil([&] {
      io_.poll();
      io_.restart();
      has_grpc_ended_ |= Read(grpc_, &from_client_);
      has_client_ended_ |= Read(client_, &from_server_);
      return condition();
    });
  }
  void TickLater() {
    to_grpc_ = FileDescriptor();
    TickAfter(absl::Seconds(61));
  }
  void TickAfter(absl::Duration time) { connection_->Tick(MonotonicNow() + time); }

  // Returns true at the end of the stream.
  static bool Read(Pair& pair, std::string* out) {
    char bytes[1000];
    boost::system::error_code error;
    out->append(bytes, pair.ours.read_some(boost::asio::buffer(bytes), error));
    return error == boost::asio::error::eof;
  }

  boost::asio::io_context io_;
  Pair client_{io_}, grpc_{io_};
  FileDescriptor to_grpc_;  // the guard's own socket
  GuardedConnectionHost host_;
  std::shared_ptr<GuardedConnection> connection_;
  std::string from_client_, from_server_;
  bool has_grpc_ended_ = false, has_client_ended_ = false, has_left_ = false;
  bool has_waited_ = false, is_connected_ = false;
  absl::Status connect_;  // the host's result
  Phase phase_ = Phase::kSilent;
  std::int64_t unfinished_ = 0;
};

// The connection has been passed to gRPC.
class GuardedConnectionTest : public ConnectionFixture {
 protected:
  GuardedConnectionTest() {
    // Only gRPC answers a stream that does not start with SETTINGS.
    SendThrough(absl::StrCat(kPreface, Frame(http2::kPriority, 0, 1, "12345")));
  }
};

const std::string kReset = RstStreamFrame(1, Http2Code::kEnhanceYourCalm);

TEST_F(GuardedConnectionTest, LateMessageResetsOnlyItsCall) {
  SendThrough(Begun(1));
  SendThrough(Frame(kHeaders, kEndHeaders, 3, "h"));
  TickLater();
  EXPECT_TRUE(Becomes([this] { return from_client_ == kReset && from_server_ == kReset; }))
      << "both sides get the reset";
  from_server_.clear();
  const std::string answer = Frame(kData, 0, 3, "answer");
  Send(grpc_, answer);
  EXPECT_TRUE(Becomes([&] { return from_server_ == answer; }));
  SendThrough(Frame(kData, 0, 3, absl::string_view("\0\0\0\0\x01x", 6)));
}

TEST_F(GuardedConnectionTest, ResetFollowsTheServersFrame) {
  SendThrough(Begun(1));
  const std::string answer = Frame(kData, 0, 3, "answer");
  Send(grpc_, answer.substr(0, 11));
  ASSERT_TRUE(Becomes([this] { return from_server_.size() == 11; }));
  TickLater();
  ASSERT_TRUE(Becomes([this] { return from_client_ == kReset; }));
  Send(grpc_, answer.substr(11));
  EXPECT_TRUE(Becomes([&] { return from_server_ == answer + kReset; }));
}

TEST_F(GuardedConnectionTest, UnfinishedFrameClosesTheConnection) {
  SendThrough(Begun(1));
  SendThrough(Frame(kData, 0, 1, "more").substr(0, 10));
  TickLater();
  EXPECT_TRUE(Becomes([this] { return has_grpc_ended_ && has_client_ended_; }));
  EXPECT_THAT(from_server_, HasSubstr("a message is not complete 1m after its first byte"));
  EXPECT_EQ(from_client_, "");
}

// Waiting bytes may start inside a frame that gRPC has received in part.
TEST_F(GuardedConnectionTest, InsertsNothingBeforeWaitingBytes) {
  SendThrough(Begun(1));
  std::string calls;
  for (std::uint32_t stream = 3; stream < 20; stream += 2) {
    calls += Frame(kHeaders, kEndHeaders, stream, "h");
  }
  Send(client_, calls);
  ASSERT_TRUE(Becomes([this] { return has_waited_; }));
  TickLater();
  EXPECT_TRUE(Becomes([this] { return has_grpc_ended_ && has_client_ended_; }));
  EXPECT_EQ(from_client_, "");
}

// gRPC does not read, so the next byte would have to wait.
TEST_F(GuardedConnectionTest, BlockedResetClosesTheConnection) {
  SendThrough(Begun(1));
  const std::string junk(4096, 'x');
  for (std::size_t size : {std::size_t{4096}, std::size_t{1}}) {
    while (send(to_grpc_.fd, junk.data(), size, MSG_DONTWAIT) > 0) {
    }
  }
  connection_->Tick(MonotonicNow() + absl::Seconds(61));
  io_.run_one();  // must return
  to_grpc_ = FileDescriptor();
  EXPECT_TRUE(Becomes([this] { return has_grpc_ended_ && has_client_ended_; }));
  EXPECT_THAT(from_server_, HasSubstr("a message is not complete"));
  EXPECT_FALSE(absl::EndsWith(from_client_, kReset));
}

const std::string kSettings = EmptySettingsFrame();
const std::string kGoAway = GoAwayFrame(0x7fffffff, Http2Code::kNoError, "");

TEST_F(GuardedConnectionTest, SendsGoawayAfterTheServersFirstFrames) {
  connection_->Yield();
  Send(grpc_, kSettings);
  EXPECT_TRUE(Becomes([this] { return from_server_ == kSettings + kGoAway; }));
  SendThrough(Frame(kHeaders, kEndHeaders, 1, "h"));
  connection_->Tick(MonotonicNow() + absl::Seconds(10));
  const std::string answer = Frame(kData, 0, 1, "answer");
  Send(grpc_, answer);
  EXPECT_TRUE(Becomes([&] { return absl::EndsWith(from_server_, answer); }))
      << "the call is served";
}

TEST_F(GuardedConnectionTest, ConnectionWithANewCallStays) {
  connection_->Yield();
  SendThrough(Frame(kHeaders, kEndHeaders, 1, "h"));
  const std::string answer = Frame(kData, 0, 1, "answer");
  Send(grpc_, kSettings + answer);
  EXPECT_TRUE(Becomes([&] { return from_server_ == kSettings + answer; }));
}

const std::string kServerSettings = Frame(http2::kSettings, 0, 0, "abcdef");
const std::string kClientSettings = Frame(http2::kSettings, 0, 0, "ghijkl");
const std::string kAcknowledged = Frame(http2::kSettings, 1, 0, "");
const std::string kCall = Frame(kHeaders, kEndHeaders, 1, "h");

class WaitingConnectionTest : public ConnectionFixture {
 protected:
  void BeginWithoutACall() {
    Send(client_, absl::StrCat(kPreface, kClientSettings));
    EXPECT_TRUE(Becomes([this] { return from_server_ == kGuardSettings + kAcknowledged; }));
    from_server_.clear();
  }
  // gRPC has the connection preface and gets the call after its own SETTINGS.
  void Call() {
    Send(client_, kAcknowledged + kCall);
    EXPECT_TRUE(Becomes([this] { return absl::EndsWith(from_client_, kClientSettings); }));
    EXPECT_EQ(from_client_, absl::StrCat(kPreface, kClientSettings));
    from_client_.clear();
  }
};

TEST_F(WaitingConnectionTest, ClientWithoutACallUsesNoGrpcResources) {
  BeginWithoutACall();
  Send(client_, kAcknowledged + Frame(http2::kWindow, 0, 0, "more") + kClientSettings);
  EXPECT_TRUE(Becomes([this] { return from_server_ == kAcknowledged; }));
  TickLater();
  EXPECT_TRUE(Becomes([this] { return phase_ == Phase::kIdle; }));
  EXPECT_FALSE(is_connected_ || has_client_ended_);
}

std::string Ping(int flags, absl::string_view payload) {
  return Frame(http2::kPing, flags, 0, payload);
}

TEST_F(WaitingConnectionTest, AnswersPingsWithoutGrpc) {
  BeginWithoutACall();
  Send(client_, kAcknowledged + Ping(0, "12345678") + Ping(0, "abcdefgh"));
  EXPECT_TRUE(
      Becomes([this] { return from_server_ == Ping(1, "12345678") + Ping(1, "abcdefgh"); }));
  from_server_.clear();
  Send(client_, Ping(0, "ABCDEFGH") + kCall);
  EXPECT_TRUE(Becomes([this] { return is_connected_; }));
  Send(grpc_, kServerSettings);
  EXPECT_TRUE(Becomes([this] { return absl::EndsWith(from_client_, kCall); }));
  EXPECT_EQ(from_client_,
            absl::StrCat(kPreface, kClientSettings, kAcknowledged, Ping(0, "ABCDEFGH"), kCall))
      << "gRPC answers the last ping";
  EXPECT_EQ(from_server_, kServerSettings);
}

TEST_F(WaitingConnectionTest, BoundsPingsWithoutACall) {
  BeginWithoutACall();
  std::string pings;
  for (int i = 0; i < 5; ++i) pings += Ping(0, "12345678");
  Send(client_, pings);
  EXPECT_TRUE(Becomes([this] { return has_client_ended_; }));
  EXPECT_THAT(from_server_, HasSubstr("too_many_pings"));
  EXPECT_FALSE(is_connected_);
}

TEST_F(WaitingConnectionTest, ConnectsToGrpcAtTheFirstCall) {
  BeginWithoutACall();
  Call();
  const std::string answer = Frame(kData, 0, 1, "answer");
  Send(grpc_, kServerSettings + kAcknowledged.substr(0, 3));
  EXPECT_TRUE(Becomes([this] {
    return from_server_ == kServerSettings && from_client_ == kAcknowledged + kCall;
  })) << "acknowledged before the call";
  Send(grpc_, kAcknowledged.substr(3) + answer.substr(0, 12));
  EXPECT_TRUE(Becomes([&] { return from_server_ == kServerSettings + answer.substr(0, 12); }))
      << "the client has already received the acknowledgement";
  Send(grpc_, answer.substr(12));
  EXPECT_TRUE(Becomes([&] { return from_server_ == kServerSettings + answer; }));
  from_client_.clear();
  const std::string more = Frame(kData, 0, 1, absl::string_view("\0\0\0\0\x01x", 6));
  Send(client_, kAcknowledged + more + kAcknowledged);
  EXPECT_TRUE(Becomes([&] { return from_client_ == more + kAcknowledged; }))
      << "gRPC has already received one";
  EXPECT_EQ(phase_, Phase::kBusy);
}

TEST_F(WaitingConnectionTest, ForwardsALateAcknowledgementToGrpc) {
  BeginWithoutACall();
  Send(client_, kCall);
  EXPECT_TRUE(Becomes([this] { return absl::EndsWith(from_client_, kClientSettings); }));
  from_client_.clear();
  Send(grpc_, kServerSettings);
  EXPECT_TRUE(Becomes([this] { return from_client_ == kCall; }));
  Send(client_, kAcknowledged + kAcknowledged + kAcknowledged);
  EXPECT_TRUE(Becomes([this] { return from_client_ == kCall + kAcknowledged + kAcknowledged; }));
}

// The client may send more than gRPC accepts until it has processed gRPC's SETTINGS.
TEST_F(WaitingConnectionTest, DoesNotAcknowledgeSmallerWindowsForTheClient) {
  BeginWithoutACall();
  Call();
  Send(grpc_, Frame(http2::kSettings, 0, 0, absl::string_view("\0\4\0\0\0\1", 6)));
  EXPECT_TRUE(Becomes([this] { return from_client_ == kCall; }));
  Send(client_, kAcknowledged);
  EXPECT_TRUE(Becomes([this] { return from_client_ == kCall + kAcknowledged; }));
}

TEST_F(WaitingConnectionTest, ForwardsAnImmediateCallUnchanged) {
  Send(client_, absl::StrCat(kPreface, kClientSettings, kCall));
  EXPECT_TRUE(
      Becomes([this] { return from_client_ == absl::StrCat(kPreface, kClientSettings, kCall); }));
  Send(grpc_, kServerSettings + kAcknowledged);
  EXPECT_TRUE(Becomes([this] { return from_server_ == kServerSettings + kAcknowledged; }));
}

TEST_F(WaitingConnectionTest, ClosesWithoutSettings) {
  Send(client_, kPreface);
  Send(client_, kClientSettings.substr(0, 12));
  TickAfter(absl::Seconds(11));
  EXPECT_TRUE(Becomes([this] { return has_client_ended_; }));
  EXPECT_FALSE(is_connected_);
}

TEST_F(WaitingConnectionTest, IsEvictedUnlessItCalls) {
  BeginWithoutACall();
  connection_->Yield();
  EXPECT_TRUE(Becomes([this] { return from_server_ == kGoAway; }));
  Call();
  TickAfter(absl::Seconds(10));
  Send(grpc_,
       kServerSettings + kAcknowledged + Frame(kHeaders, http2::kEndStream | kEndHeaders, 1, "h"));
  EXPECT_TRUE(Becomes([this] { return phase_ == Phase::kLeaving; }));
  TickAfter(absl::Seconds(10));
  EXPECT_TRUE(Becomes([this] { return has_client_ended_; }));
}

TEST_F(WaitingConnectionTest, ClosesAtTheMaximumAge) {
  BeginWithoutACall();
  TickAfter(absl::Minutes(6));
  EXPECT_TRUE(Becomes([this] { return from_server_ == kGoAway; }));
  TickAfter(absl::Minutes(7));
  EXPECT_TRUE(Becomes([this] { return has_client_ended_; }));
}

TEST_F(WaitingConnectionTest, SendsGoawayAtShutdown) {
  BeginWithoutACall();
  connection_->FinishSoon();
  EXPECT_TRUE(Becomes([this] { return has_client_ended_; }));
  EXPECT_EQ(from_server_, GoAwayFrame(0, Http2Code::kNoError, ""));
}

TEST_F(WaitingConnectionTest, RejectsACallWithoutCapacity) {
  BeginWithoutACall();
  connect_ = absl::ResourceExhaustedError("no room");
  Send(client_, kAcknowledged + kCall);
  EXPECT_TRUE(Becomes([this] { return has_client_ended_; }));
  EXPECT_EQ(from_server_, GoAwayFrame(0, Http2Code::kEnhanceYourCalm, "no room"));
}

}  // namespace
}  // namespace quire::server
