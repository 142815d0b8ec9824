#include "server/edge/frame_guard.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <random>
#include <string>
#include <utility>

#include "absl/strings/string_view.h"
#include "tests/server/http2_frames.h"

namespace quire::server {
namespace {

using http2::Frame;
using http2::kData;
using http2::kEndHeaders;
using http2::kEndStream;
using http2::kGoAway;
using http2::kHeaders;
using http2::kMore;
using http2::kPadded;
using http2::kPing;
using http2::kPreface;
using http2::kPriority;
using http2::kPush;
using http2::kReset;
using http2::kSettings;
using http2::kWindow;
using http2::Type;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

const absl::Time kNow = absl::FromUnixSeconds(1000);

// A gRPC message that declares `size` bytes and contains `sent` of them.
std::string Message(std::uint32_t size, std::size_t sent) {
  std::string message(1, '\0');
  for (int i = 3; i >= 0; --i) message.push_back(static_cast<char>(size >> (8 * i)));
  return message + std::string(sent, 'x');
}

FrameLimits Limits() {
  return {.max_streams = 4,
          .max_header_block_bytes = 100,
          .max_resets = 10,
          .max_control_frames = 20,
          .max_window_updates = 50,
          .max_header_bytes = 2000,
          .max_unfinished_bytes = 1000,
          .message_timeout = absl::Seconds(5)};
}

std::span<const std::byte> Bytes(absl::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

class FrameGuardTest : public ::testing::Test {
 protected:
  FrameGuardTest() { EXPECT_TRUE(Client(kPreface).ok()); }

  absl::Status Client(absl::string_view bytes) { return guard_.OnClientBytes(Bytes(bytes), now_); }
  absl::Status Open(std::uint32_t stream) {
    return Client(Frame(kHeaders, kEndHeaders, stream, "h"));
  }
  void Server(absl::string_view bytes) { guard_.OnServerBytes(Bytes(bytes)); }

  absl::Time now_ = kNow;
  FrameGuard guard_{Limits()};
};

TEST_F(FrameGuardTest, RejectsOtherProtocols) {
  FrameGuard guard(Limits());
  EXPECT_TRUE(guard.OnClientBytes(Bytes("PRI * "), kNow).ok());
  EXPECT_FALSE(guard.has_preface());
  EXPECT_TRUE(absl::IsInvalidArgument(guard.OnClientBytes(Bytes("HTTP/1.1"), kNow)));
}

TEST_F(FrameGuardTest, BoundsStreamsUntilTheyEnd) {
  for (const std::uint32_t stream : {1, 3, 5, 7}) EXPECT_TRUE(Open(stream).ok());
  Server(Frame(kHeaders, kEndHeaders | kEndStream, 1, "trailers"));
  EXPECT_TRUE(Client(Frame(kReset, 0, 3, "code")).ok());
  EXPECT_EQ(guard_.num_streams(), 2u);
  EXPECT_TRUE(Open(9).ok());
  EXPECT_TRUE(Open(11).ok());
  const absl::Status fifth = Open(13);
  EXPECT_TRUE(absl::IsResourceExhausted(fifth));
  EXPECT_THAT(fifth.message(), HasSubstr("5 streams at once, server.grpc.max_concurrent_streams"));
}

// Before the acknowledgement, a client may not know how many streams the server accepts.
TEST(FrameGuardLimitsTest, AllowsFewerStreamsBeforeSettingsAreAcknowledged) {
  FrameLimits limits = Limits();
  limits.max_early_streams = 2;
  for (const bool acknowledges : {false, true}) {
    FrameGuard guard(limits);
    EXPECT_TRUE(guard.OnClientBytes(Bytes(kPreface), kNow).ok());
    EXPECT_TRUE(guard.OnClientBytes(Bytes(Frame(kSettings, 0, 0, "abcdef")), kNow).ok());
    EXPECT_TRUE(guard.OnClientBytes(Bytes(Frame(kSettings, 1, 1, "")), kNow).ok());
    if (acknowledges) {
      EXPECT_TRUE(guard.OnClientBytes(Bytes(Frame(kSettings, 1, 0, "")), kNow).ok());
    }
    absl::Status opened;
    for (const std::uint32_t stream : {1, 3, 5}) {
      EXPECT_TRUE(opened.ok()) << opened;
      opened = guard.OnClientBytes(Bytes(Frame(kHeaders, kEndHeaders, stream, "h")), kNow);
    }
    EXPECT_EQ(opened, acknowledges ? absl::OkStatus()
                                   : absl::ResourceExhaustedError(
                                         "the connection opened 3 streams at once and has not "
                                         "acknowledged SETTINGS, limit 2"));
  }
}

// A client that half-closes its stream still waits for an answer.
TEST_F(FrameGuardTest, CountsHalfClosedStreams) {
  EXPECT_TRUE(Client(Frame(kHeaders, kEndHeaders | kEndStream, 1, "h")).ok());
  EXPECT_EQ(guard_.num_streams(), 1u);
  Server(Frame(kData, kEndStream, 1, ""));
  EXPECT_EQ(guard_.num_streams(), 0u);
}

TEST_F(FrameGuardTest, ClientTrailersOpenNoStream) {
  EXPECT_TRUE(Open(1).ok());
  EXPECT_TRUE(Client(Frame(kHeaders, kEndHeaders | kEndStream, 1, "trailers")).ok());
  EXPECT_EQ(guard_.num_streams(), 1u);
}

TEST_F(FrameGuardTest, BoundsAHeaderBlockAcrossFrames) {
  EXPECT_TRUE(Client(Frame(kHeaders, 0, 1, std::string(60, 'h'))).ok());
  EXPECT_TRUE(Client(Frame(kMore, 0, 1, std::string(40, 'h'))).ok());
  const absl::Status over = Client(Frame(kMore, kEndHeaders, 1, "h"));
  EXPECT_THAT(over.message(), HasSubstr("101 bytes or more, limit 100"));
}

TEST_F(FrameGuardTest, CountsAPaddedMessageAsAReset) {
  absl::Status status;
  std::uint32_t stream = 1;
  for (; status.ok() && stream < 100; stream += 2) {
    ASSERT_TRUE(Open(stream).ok());
    status = Client(Frame(kData, kPadded, stream, absl::string_view("\1x\0", 3)));
    EXPECT_EQ(guard_.num_streams(), 0u);
  }
  EXPECT_THAT(status.message(), HasSubstr("11 resets of streams in a second, limit 10"));
}

TEST_F(FrameGuardTest, CountsEmptyContinuationsAsControlFrames) {
  EXPECT_TRUE(Client(Frame(kHeaders, 0, 1, "h")).ok());
  for (int i = 0; i < 20; ++i) EXPECT_TRUE(Client(Frame(kMore, 0, 1, "")).ok());
  EXPECT_TRUE(absl::IsResourceExhausted(Client(Frame(kMore, 0, 1, ""))));
}

TEST_F(FrameGuardTest, BoundsFramesPerSecond) {
  const struct {
    Type type;
    std::int64_t limit;
    absl::string_view what;
  } kinds[] = {{kReset, 10, "11 resets of streams in a second, limit 10"},
               {kSettings, 20, "21 control frames in a second, limit 20"},
               {kPing, 20, "21 control frames"},
               {kPriority, 20, "21 control frames"},
               {static_cast<Type>(77), 20, "21 control frames"},
               {kData, 20, "21 control frames"},
               {kWindow, 50, "51 WINDOW_UPDATE frames"}};
  for (const auto& kind : kinds) {
    FrameGuard guard(Limits());
    absl::Time now = kNow;
    ASSERT_TRUE(guard.OnClientBytes(Bytes(kPreface), now).ok());
    const std::string frame = Frame(kind.type, 0, 1, "");
    for (int second = 0; second < 3; ++second, now += absl::Seconds(1)) {
      for (std::int64_t i = 0; i < kind.limit; ++i) {
        ASSERT_TRUE(guard.OnClientBytes(Bytes(frame), now).ok()) << kind.what;
      }
    }
    now -= absl::Milliseconds(1);  // less than a second has passed
    EXPECT_THAT(guard.OnClientBytes(Bytes(frame), now).message(), HasSubstr(kind.what));
  }
}

TEST_F(FrameGuardTest, BoundsHeadersPerSecond) {
  std::uint32_t stream = 1;
  absl::Status status;
  for (; status.ok() && stream < 200; stream += 2) {
    status = Client(Frame(kHeaders, kEndHeaders, stream, std::string(91, 'h')));
    Server(Frame(kReset, 0, stream, "code"));
  }
  EXPECT_THAT(status.message(), HasSubstr("2100 bytes of headers in a second, limit 2000"));
}

TEST_F(FrameGuardTest, CountsMessagesUntilTheyAreComplete) {
  EXPECT_TRUE(Open(1).ok());
  EXPECT_TRUE(Open(3).ok());
  EXPECT_TRUE(Client(Frame(kData, 0, 1, Message(300, 200))).ok());
  EXPECT_TRUE(Client(Frame(kData, 0, 3, Message(900, 400))).ok());
  EXPECT_EQ(guard_.unfinished_bytes(), 205 + 405);
  // The frame contains the end of one message and the start of the next.
  EXPECT_TRUE(Client(Frame(kData, 0, 1, std::string(100, 'x') + Message(50, 10))).ok());
  EXPECT_EQ(guard_.unfinished_bytes(), 15 + 405);
  const absl::Status over = Client(Frame(kData, 0, 3, std::string(600, 'x')));
  EXPECT_TRUE(over.ok()) << "500 bytes complete a message, 100 start the next";
  EXPECT_EQ(guard_.unfinished_bytes(), 15 + 100);
  EXPECT_TRUE(Open(5).ok());
  EXPECT_THAT(Client(Frame(kData, 0, 5, Message(2000, 900))).message(),
              HasSubstr("have 1020 bytes, limit 1000"));
}

TEST_F(FrameGuardTest, ResetDropsTheStreamsMessage) {
  EXPECT_TRUE(Open(1).ok());
  EXPECT_TRUE(Client(Frame(kData, 0, 1, Message(300, 200))).ok());
  Server(Frame(kReset, 0, 1, "code"));
  EXPECT_EQ(guard_.unfinished_bytes(), 0);
  EXPECT_TRUE(Client(Frame(kData, 0, 1, std::string(900, 'x'))).ok());
  EXPECT_EQ(guard_.unfinished_bytes(), 0) << "gRPC drops it";
}

TEST_F(FrameGuardTest, MessagesHaveATimeout) {
  EXPECT_TRUE(Open(1).ok());
  EXPECT_TRUE(Client(Frame(kData, 0, 1, Message(300, 0))).ok());
  now_ += absl::Seconds(4);
  EXPECT_TRUE(Client(Frame(kData, 0, 1, "x")).ok());
  EXPECT_TRUE(Open(3).ok());
  EXPECT_TRUE(Client(Frame(kData, 0, 3, Message(300, 0))).ok());
  EXPECT_THAT(guard_.TakeLateStreams(now_), IsEmpty());
  now_ += absl::Seconds(1);
  EXPECT_THAT(guard_.TakeLateStreams(now_), ElementsAre(1)) << "since its first byte";
  EXPECT_EQ(guard_.num_streams(), 1u);
  EXPECT_TRUE(Client(Frame(kData, 0, 1, std::string(299, 'x'))).ok()) << "gRPC drops it";
  EXPECT_TRUE(Client(Frame(kData, 0, 3, std::string(300, 'x'))).ok());
  now_ += absl::Minutes(1);
  EXPECT_THAT(guard_.TakeLateStreams(now_), IsEmpty());
  EXPECT_TRUE(guard_.CheckIntegrity().ok());
}

TEST_F(FrameGuardTest, AllowsNoFrameInsideAFrameOrHeaderBlock) {
  EXPECT_TRUE(Open(1).ok());
  EXPECT_TRUE(guard_.is_between_client_frames());
  EXPECT_TRUE(Client(Frame(kHeaders, 0, 3, "abc")).ok());
  EXPECT_FALSE(guard_.is_between_client_frames()) << "a CONTINUATION frame must follow";
  EXPECT_TRUE(Client(Frame(kMore, kEndHeaders, 3, "abc")).ok());
  EXPECT_TRUE(guard_.is_between_client_frames());
  Server(Frame(kHeaders, 0, 1, "abc"));
  EXPECT_FALSE(guard_.is_between_server_frames());
  Server(Frame(kMore, kEndHeaders, 1, "abc"));
  EXPECT_TRUE(guard_.is_between_server_frames());
}

TEST_F(FrameGuardTest, TracksTheEndOfServerFrames) {
  const std::string frame = Frame(kData, 0, 1, "abc");
  for (std::size_t size = 1; size < frame.size(); ++size) {
    FrameGuard guard(Limits());
    guard.OnServerBytes(Bytes(absl::string_view(frame).substr(0, size)));
    EXPECT_FALSE(guard.is_between_server_frames()) << size;
    guard.OnServerBytes(Bytes(absl::string_view(frame).substr(size)));
    EXPECT_TRUE(guard.is_between_server_frames()) << size;
  }
}

TEST_F(FrameGuardTest, SendsTheReasonInAGoawayFrame) {
  EXPECT_EQ(GoAwayFrame(5, Http2Code::kEnhanceYourCalm, "why"),
            Frame(kGoAway, 0, 0, absl::string_view("\0\0\0\5\0\0\0\x0bwhy", 11)));
  EXPECT_EQ(EmptySettingsFrame(), Frame(kSettings, 0, 0, ""));
}

// The model of the random test. It has the guard's counts and no bytes.
struct Model {
  struct Stream {
    std::int64_t size = 0, there = 0;  // of the current message, including its prefix
  };
  std::map<std::uint32_t, Stream> open;
  std::int64_t unfinished() const {
    std::int64_t sum = 0;
    for (const auto& [id, stream] : open) sum += stream.there;
    return sum;
  }
};

// Generates random frames and applies each to the model.
class RandomClient {
 public:
  explicit RandomClient(std::uint32_t seed) : random_(seed) {}

  std::size_t Below(std::size_t n) { return random_() % n; }
  std::uint32_t AnyStream() { return 1 + 2 * static_cast<std::uint32_t>(Below(next_ / 2 + 1)); }
  const Model& model() const { return model_; }

  void Close(std::uint32_t stream) { model_.open.erase(stream); }

  std::string NextFrame() {
    const std::uint32_t any = AnyStream();
    switch (Below(6)) {
      case 0: {
        const std::uint32_t stream = std::exchange(next_, next_ + 2);
        model_.open[stream] = {};
        return Frame(kHeaders, kEndHeaders, stream, std::string(Below(90), 'h'));
      }
      case 1:
        Close(any);
        return Frame(kReset, 0, any, "code");
      case 2:
        return Frame(kPing, 0, 0, "12345678");
      default:
        return Frame(kData, 0, any, NextPayload(any));
    }
  }

 private:
  std::string NextPayload(std::uint32_t id) {
    const auto found = model_.open.find(id);
    Model::Stream stream = found == model_.open.end() ? Model::Stream{} : found->second;
    std::string payload;
    for (std::size_t i = Below(4); i > 0; --i) {
      if (stream.size == 0) {
        const auto size = static_cast<std::uint32_t>(Below(60));
        payload += Message(size, 0);
        stream = {size + 5, 5};
      } else {
        const auto more = std::min<std::int64_t>(stream.size - stream.there,
                                                 static_cast<std::int64_t>(Below(40)));
        payload += std::string(static_cast<std::size_t>(more), 'x');
        stream.there += more;
      }
      if (stream.there == stream.size) stream = {};
    }
    if (found != model_.open.end()) found->second = stream;
    return payload;
  }

  std::mt19937 random_;
  std::uint32_t next_ = 1;
  Model model_;
};

// The frames are split at random positions.
TEST(FrameGuardRandomTest, CountsMatchAModelOfFrames) {
  const std::uint32_t seed = std::random_device()();
  SCOPED_TRACE(::testing::Message() << "seed " << seed);
  FrameLimits limits = Limits();
  limits.max_streams = limits.max_resets = limits.max_control_frames = 1 << 30;
  limits.max_header_bytes = limits.max_unfinished_bytes = limits.max_early_streams = 1 << 30;
  FrameGuard guard(limits);
  ASSERT_TRUE(guard.OnClientBytes(Bytes(kPreface), kNow).ok());
  RandomClient client(seed);
  for (int round = 0; round < 5000; ++round) {
    const std::string frame = client.NextFrame();
    for (absl::string_view rest = frame; !rest.empty();) {
      const std::size_t size = std::min(rest.size(), 1 + client.Below(30));
      ASSERT_TRUE(guard.OnClientBytes(Bytes(rest.substr(0, size)), kNow).ok());
      rest.remove_prefix(size);
    }
    if (client.Below(8) == 0) {
      const std::uint32_t any = client.AnyStream();
      const std::string answer =
          Frame(kData, 0, any, "text") + Frame(kHeaders, kEndHeaders | kEndStream, any, "t");
      for (const char& byte : answer) guard.OnServerBytes(Bytes(absl::string_view(&byte, 1)));
      client.Close(any);
    }
    ASSERT_EQ(guard.num_streams(), client.model().open.size());
    ASSERT_EQ(guard.unfinished_bytes(), client.model().unfinished());
    ASSERT_TRUE(guard.CheckIntegrity().ok()) << guard.CheckIntegrity();
  }
}

}  // namespace
}  // namespace quire::server
