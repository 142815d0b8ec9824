// The test owns the client's and gRPC's ends of a connection and sets the time.

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
#include <vector>

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
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Local = boost::asio::local::stream_protocol;

// Returns a call whose message of 100 bytes is incomplete.
std::string UnfinishedCall(std::uint32_t stream) {
  return absl::StrCat(Frame(kHeaders, kEndHeaders, stream, "h"),
                      Frame(kData, 0, stream, absl::string_view("\0\0\0\0\x64half", 9)));
}

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
                           const Peer&) -> absl::StatusOr<GuardedConnectionHost::SocketToGrpc> {
      if (!connect_.ok()) return connect_;
      is_connected_ = true;
      to_grpc_ = FileDescriptor(dup(grpc_.theirs.native_handle()));
      return GuardedConnectionHost::SocketToGrpc{.socket = std::move(grpc_.theirs), .name = "name"};
    };
    host_.add_unfinished_bytes = [this](std::int64_t bytes) { unfinished_ += bytes; };
    host_.count_closed = [this](const Peer&, CloseCause cause, absl::string_view) {
      causes_.push_back(cause);
    };
    host_.set_phase = [this](std::uint64_t, Phase phase) { phase_ = phase; };
    host_.try_linger = [this](std::uint64_t) { return may_linger_; };
    host_.remove = [this](std::uint64_t, const std::string& name) {
      is_removed_ = true;
      EXPECT_EQ(name, is_connected_ ? "name" : "");
    };
    FrameLimits limits = {.max_streams = 10,
                          .max_header_block_bytes = 1000,
                          .max_resets = 10,
                          .max_control_frames = 10,
                          .max_window_updates = 10,
                          .max_header_bytes = 1000,
                          .max_unfinished_bytes = 1000,
                          .message_timeout = absl::Seconds(60)};
    connection_ = std::make_shared<GuardedConnection>(
        &host_, 1, NewPlainTransport(std::move(client_.theirs)), Peer{}, limits,
        ConnectionTimes{.preface = absl::Seconds(10), .write_stall = absl::Minutes(10)});
    connection_->Begin();
  }

  ~ConnectionFixture() override {
    connection_->Abort();
    connection_.reset();
    EXPECT_TRUE(Becomes([this] { return is_removed_; }));
    EXPECT_EQ(unfinished_, 0);
  }

  static void Send(Pair& pair, absl::string_view bytes) {
    EXPECT_EQ(pair.ours.write_some(boost::asio::buffer(bytes.data(), bytes.size())), bytes.size());
  }
  // Sends bytes of the client and waits until gRPC has received them.
  void SendThrough(absl::string_view bytes) {
    Send(client_, bytes);
    EXPECT_TRUE(Becomes([&] { return absl::EndsWith(from_client_, bytes); }));
    from_client_.clear();
  }
  void Poll() {
    io_.restart();
    io_.poll();
  }
  bool Becomes(absl::FunctionRef<bool()> condition) {
    return testing::WaitUntil([&] {
      Poll();
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
  FileDescriptor to_grpc_;  // a duplicate of the connection's own socket
  GuardedConnectionHost host_;
  std::shared_ptr<GuardedConnection> connection_;
  std::string from_client_, from_server_;
  bool has_grpc_ended_ = false, has_client_ended_ = false, is_removed_ = false;
  bool is_connected_ = false, may_linger_ = true;
  absl::Status connect_;  // the host's answer
  Phase phase_ = Phase::kIdle;
  std::vector<CloseCause> causes_;
  std::int64_t unfinished_ = 0;
};

// The connection is already passed to gRPC.
class GuardedConnectionTest : public ConnectionFixture {
 protected:
  GuardedConnectionTest() { SendThrough(kPreface); }
};

const std::string kReset = RstStreamFrame(1, Http2Code::kEnhanceYourCalm);

TEST_F(GuardedConnectionTest, LateMessageResetsOnlyItsCall) {
  SendThrough(UnfinishedCall(1));
  SendThrough(Frame(kHeaders, kEndHeaders, 3, "h"));
  TickLater();
  EXPECT_TRUE(Becomes([this] { return from_client_ == kReset && from_server_ == kReset; }))
      << "both sides know";
  from_server_.clear();
  const std::string answer = Frame(kData, 0, 3, "answer");
  Send(grpc_, answer);
  EXPECT_TRUE(Becomes([&] { return from_server_ == answer; }));
  SendThrough(Frame(kData, 0, 3, absl::string_view("\0\0\0\0\x01x", 6)));
}

TEST_F(GuardedConnectionTest, ResetIsSentAfterTheServersFrame) {
  SendThrough(UnfinishedCall(1));
  const std::string answer = Frame(kData, 0, 3, "answer");
  Send(grpc_, answer.substr(0, 11));
  ASSERT_TRUE(Becomes([this] { return from_server_.size() == 11; }));
  TickLater();
  ASSERT_TRUE(Becomes([this] { return from_client_ == kReset; }));
  Send(grpc_, answer.substr(11));
  EXPECT_TRUE(Becomes([&] { return from_server_ == answer + kReset; }));
}

TEST_F(GuardedConnectionTest, IncompleteFrameClosesTheConnection) {
  SendThrough(UnfinishedCall(1));
  SendThrough(Frame(kData, 0, 1, "more").substr(0, 10));
  TickLater();
  EXPECT_TRUE(Becomes([this] { return has_grpc_ended_ && has_client_ended_; }));
  EXPECT_THAT(from_server_, HasSubstr("a message is not complete 1m after its first byte"));
  EXPECT_EQ(from_client_, "");
}

// gRPC does not read, so the next byte would have to wait.
TEST_F(GuardedConnectionTest, ResetThatCannotBeWrittenClosesTheConnection) {
  SendThrough(UnfinishedCall(1));
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

const std::string kServerSettings = Frame(http2::kSettings, 0, 0, "abcdef");
const std::string kCall = Frame(kHeaders, kEndHeaders, 1, "h");
const std::string kAnswer = Frame(kHeaders, kEndHeaders | http2::kEndStream, 1, "h");

std::string GoAway(std::uint32_t last_stream) {
  return GoAwayFrame(last_stream, Http2Code::kNoError, "");
}

TEST_F(GuardedConnectionTest, EvictionBeforeTheServersSettingsSendsSettingsAndGoAway) {
  to_grpc_ = FileDescriptor();
  connection_->Evict();
  EXPECT_TRUE(Becomes([this] { return has_client_ended_ && has_grpc_ended_; }));
  EXPECT_EQ(from_server_, EmptySettingsFrame() + GoAway(0));
  EXPECT_THAT(causes_, ElementsAre(CloseCause::kIdle));
  EXPECT_EQ(phase_, Phase::kClosing);
}

TEST_F(GuardedConnectionTest, EvictionNamesTheLastCallOfTheClient) {
  Send(grpc_, kServerSettings);
  SendThrough(kCall);
  EXPECT_EQ(phase_, Phase::kBusy);
  Send(grpc_, kAnswer);
  EXPECT_TRUE(Becomes([this] { return phase_ == Phase::kIdle; }));
  connection_->Evict();
  EXPECT_TRUE(Becomes([this] { return has_client_ended_; }));
  EXPECT_EQ(from_server_, kServerSettings + kAnswer + GoAway(1));
}

TEST_F(GuardedConnectionTest, GoAwayFollowsTheRestOfTheServersFrame) {
  const std::string headers =
      absl::StrCat(Frame(kHeaders, 0, 1, "h"), Frame(http2::kMore, kEndHeaders, 1, "more"));
  Send(grpc_, kServerSettings + headers.substr(0, 3));
  EXPECT_TRUE(Becomes([&] { return from_server_.size() == kServerSettings.size() + 3; }));
  connection_->Evict();
  EXPECT_TRUE(Becomes([this] { return has_grpc_ended_; })) << "its calls end at once";
  EXPECT_FALSE(has_client_ended_);
  // The read that was pending takes a byte, and later ones end with the header block.
  Send(grpc_, headers.substr(3, 1));
  EXPECT_TRUE(Becomes([&] { return from_server_.size() == kServerSettings.size() + 4; }));
  Send(grpc_, headers.substr(4) + kAnswer);
  EXPECT_TRUE(Becomes([this] { return has_client_ended_; }));
  EXPECT_EQ(from_server_, kServerSettings + headers + GoAway(0));
}

TEST_F(GuardedConnectionTest, IncompleteServersFrameIsFollowedByNothing) {
  Send(grpc_, kServerSettings.substr(0, 11));
  EXPECT_TRUE(Becomes([this] { return from_server_.size() == 11; }));
  connection_->Evict();
  EXPECT_TRUE(Becomes([this] { return has_grpc_ended_; }));
  grpc_.ours.close();
  EXPECT_TRUE(Becomes([this] { return has_client_ended_; }));
  EXPECT_EQ(from_server_.size(), 11u);
}

TEST_F(GuardedConnectionTest, ConnectionWithACallIsNotEvicted) {
  SendThrough(kCall);
  phase_ = Phase::kClosing;
  connection_->Evict();
  EXPECT_TRUE(Becomes([this] { return phase_ == Phase::kBusy; }));
  Send(grpc_, kServerSettings + kAnswer);
  EXPECT_TRUE(Becomes([this] { return from_server_ == kServerSettings + kAnswer; }));
  EXPECT_THAT(causes_, IsEmpty());
}

TEST_F(GuardedConnectionTest, LingeringConnectionClosesAfterASecond) {
  const auto can_write = [this] {
    boost::system::error_code error;
    client_.ours.write_some(boost::asio::buffer("x", 1), error);
    return !error;
  };
  connection_->Evict();
  EXPECT_TRUE(Becomes([this] { return has_client_ended_; }));
  TickAfter(absl::Milliseconds(900));
  Poll();
  EXPECT_TRUE(can_write());
  TickAfter(absl::Milliseconds(1100));
  EXPECT_TRUE(Becomes([&] { return !can_write(); }));
}

TEST_F(GuardedConnectionTest, ClosesWithoutAFrameIfItMayNotLinger) {
  to_grpc_ = FileDescriptor();
  may_linger_ = false;
  connection_->Evict();
  EXPECT_TRUE(Becomes([this] { return has_client_ended_ && has_grpc_ended_; }));
  EXPECT_EQ(from_server_, "");
}

TEST_F(GuardedConnectionTest, ConnectionThatGrpcClosesLingersInItsPlaceUntilItIsEvicted) {
  may_linger_ = false;  // only connections that get a GOAWAY frame need permission
  SendThrough(kCall);
  Send(grpc_, kServerSettings);
  to_grpc_ = FileDescriptor();
  grpc_.ours.close();
  EXPECT_TRUE(Becomes([this] { return has_client_ended_; }));
  EXPECT_EQ(from_server_, kServerSettings);
  EXPECT_EQ(phase_, Phase::kIdle);
  Send(client_, "read and discarded");
  Poll();
  connection_->Evict();
  Poll();
  EXPECT_EQ(phase_, Phase::kClosing);
  boost::system::error_code error;
  client_.ours.write_some(boost::asio::buffer("x", 1), error);
  EXPECT_TRUE(error) << "the socket is closed";
}

TEST_F(GuardedConnectionTest, HalfCloseReachesGrpcAndTheResponseReachesTheClient) {
  SendThrough(kCall);
  client_.ours.shutdown(Local::socket::shutdown_send);
  EXPECT_TRUE(Becomes([this] { return has_grpc_ended_; }));
  EXPECT_FALSE(has_client_ended_);
  Send(grpc_, kServerSettings + kAnswer);
  grpc_.ours.close();
  EXPECT_TRUE(Becomes([this] { return has_client_ended_; }));
  EXPECT_EQ(from_server_, kServerSettings + kAnswer);
}

TEST_F(GuardedConnectionTest, ClientThatDoesNotReadIsClosedAfterTheTimeout) {
  const std::string frame = Frame(kData, 0, 1, std::string(16000, 'x'));
  boost::system::error_code error;
  while (!error) {
    grpc_.ours.write_some(boost::asio::buffer(frame), error);
    Poll();
  }
  TickAfter(absl::Minutes(9));
  Poll();
  EXPECT_THAT(causes_, IsEmpty());
  TickAfter(absl::Minutes(11));
  EXPECT_TRUE(Becomes([this] { return !causes_.empty(); }));
  EXPECT_THAT(causes_, ElementsAre(CloseCause::kTimeout));
}

// Connections that are not yet passed to gRPC.
using OpeningConnectionTest = ConnectionFixture;

TEST_F(OpeningConnectionTest, ConnectsToGrpcAfterTheWholePreface) {
  const std::string bytes = absl::StrCat(kPreface, kServerSettings);
  for (std::size_t i = 0; i + 1 < kPreface.size(); ++i) {
    Send(client_, bytes.substr(i, 1));
    Poll();
    EXPECT_FALSE(is_connected_);
  }
  Send(client_, bytes.substr(kPreface.size() - 1));
  EXPECT_TRUE(Becomes([&] { return from_client_ == bytes; }));
  EXPECT_EQ(phase_, Phase::kIdle);
}

TEST_F(OpeningConnectionTest, SilentClientIsClosedAfterTheTimeout) {
  Send(client_, kPreface.substr(0, 10));
  TickAfter(absl::Seconds(9));
  Poll();
  EXPECT_THAT(causes_, IsEmpty());
  TickAfter(absl::Seconds(11));
  EXPECT_TRUE(Becomes([this] { return has_client_ended_; }));
  EXPECT_THAT(causes_, ElementsAre(CloseCause::kSilent));
  EXPECT_FALSE(is_connected_);
  EXPECT_EQ(from_server_, "");
}

TEST_F(OpeningConnectionTest, SilentClientIsEvicted) {
  connection_->Evict();
  EXPECT_TRUE(Becomes([this] { return has_client_ended_; }));
  EXPECT_THAT(causes_, ElementsAre(CloseCause::kSilent));
}

TEST_F(OpeningConnectionTest, ClosesWhenTheProcessEnds) {
  connection_->CloseIfOpening();
  EXPECT_TRUE(Becomes([this] { return has_client_ended_; }));
  EXPECT_THAT(causes_, IsEmpty());
}

TEST_F(OpeningConnectionTest, RejectsOtherProtocols) {
  Send(client_, "GET / HTTP/1.1\r\n\r\n");
  EXPECT_TRUE(Becomes([this] { return has_client_ended_; }));
  EXPECT_THAT(causes_, ElementsAre(CloseCause::kNotHttp2));
  EXPECT_THAT(from_server_, HasSubstr("does not begin with the HTTP/2 preface"));
  EXPECT_FALSE(is_connected_);
}

TEST_F(OpeningConnectionTest, ClientGetsTheReasonIfNoDescriptorIsAvailable) {
  connect_ = absl::ResourceExhaustedError("no room");
  Send(client_, absl::StrCat(kPreface, kCall));
  EXPECT_TRUE(Becomes([this] { return has_client_ended_; }));
  EXPECT_EQ(from_server_,
            EmptySettingsFrame() + GoAwayFrame(0, Http2Code::kEnhanceYourCalm, "no room"));
  EXPECT_THAT(causes_, ElementsAre(CloseCause::kNoResource));
}

// The client is rejected before its first call and has received SETTINGS.
class RejectedConnectionTest : public ConnectionFixture {
 protected:
  RejectedConnectionTest() {
    connect_ = absl::ResourceExhaustedError("no room");
    Send(client_, kPreface);
    EXPECT_TRUE(Becomes([this] { return from_server_ == EmptySettingsFrame(); }));
    EXPECT_THAT(causes_, ElementsAre(CloseCause::kNoResource));
    from_server_.clear();
  }

  void ExpectReason() {
    EXPECT_TRUE(Becomes([this] { return has_client_ended_; }));
    EXPECT_EQ(from_server_, GoAwayFrame(0, Http2Code::kEnhanceYourCalm, "no room"));
  }
};

TEST_F(RejectedConnectionTest, FirstCallGetsTheReason) {
  Send(client_, kCall);
  ExpectReason();
}

TEST_F(RejectedConnectionTest, ClientWithoutACallGetsTheReasonAfterASecond) {
  TickAfter(absl::Milliseconds(500));
  Poll();
  EXPECT_FALSE(Read(client_, &from_server_));
  EXPECT_EQ(from_server_, "");
  TickAfter(absl::Seconds(2));
  ExpectReason();
}

TEST_F(RejectedConnectionTest, ClientThatClosesItsDirectionGetsTheReason) {
  client_.ours.shutdown(Local::socket::shutdown_send);
  ExpectReason();
}

TEST_F(RejectedConnectionTest, ClosesWhenTheProcessEnds) {
  connection_->CloseIfOpening();
  EXPECT_TRUE(Becomes([this] { return has_client_ended_; }));
  EXPECT_EQ(from_server_, "");
}

}  // namespace
}  // namespace quire::server
