#include "server/edge/first_frames.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/server/http2_frames.h"

namespace quire::server {
namespace {

using http2::Frame;
using http2::kData;
using http2::kEndHeaders;
using http2::kGoAway;
using http2::kHeaders;
using http2::kPing;
using http2::kPreface;
using http2::kSettings;
using http2::kWindow;

constexpr int kAck = 1;
const std::string kClientSettings = Frame(kSettings, 0, 0, "abcdef");
const std::string kServerSettings = Frame(kSettings, 0, 0, "ghijklmnopqr");
const std::string kAcknowledged = Frame(kSettings, kAck, 0, "");
const std::string kMoreWindow = Frame(kWindow, 0, 0, "more");
const std::string kCall = Frame(kHeaders, kEndHeaders, 1, "h");
const std::string kPing1 = Frame(kPing, 0, 0, "12345678");
const std::string kPing2 = Frame(kPing, 0, 0, "abcdefgh");

std::span<const std::byte> BytesOf(absl::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

// A client that has sent its SETTINGS and received the guard's.
ClientFirstFrames Answered() {
  ClientFirstFrames frames;
  frames.Add(BytesOf(absl::StrCat(kPreface, kClientSettings)));
  frames.NoteSettingsSent();
  return frames;
}

TEST(ClientFirstFramesTest, SettingsAndWindowUpdatesDoNotNeedGrpc) {
  ClientFirstFrames frames = Answered();
  EXPECT_EQ(frames.num_settings(), 1);
  frames.Add(BytesOf(kMoreWindow + kAcknowledged + kClientSettings));
  EXPECT_EQ(frames.num_settings(), 2);
  EXPECT_FALSE(frames.needs_grpc());
  frames.Add(BytesOf(kCall.substr(0, 8)));
  EXPECT_FALSE(frames.needs_grpc()) << "it may be anything";
  frames.Add(BytesOf(kCall.substr(8)));
  EXPECT_TRUE(frames.needs_grpc());
  frames.Add(BytesOf(kMoreWindow));
  EXPECT_EQ(frames.opening(),
            absl::StrCat(kPreface, kClientSettings, kMoreWindow, kClientSettings));
  EXPECT_EQ(frames.behind(), kCall + kMoreWindow);
  EXPECT_TRUE(frames.has_acknowledged());
}

TEST(ClientFirstFramesTest, OtherFramesNeedGrpc) {
  for (const std::string& other :
       {kCall, Frame(kPing, 0, 0, "1234567"), Frame(kPing, 0, 1, "12345678"),
        Frame(kPing, kAck, 0, "12345678"), Frame(kGoAway, 0, 0, "12345678"),
        Frame(kSettings, 0, 0, "odd"), Frame(kSettings, 0, 1, "abcdef"),
        Frame(kSettings, kAck, 0, "abcdef"), Frame(kWindow, 0, 1, "more"),
        Frame(kWindow, 0, 0, "m"), Frame(kData, 0, 0, "")}) {
    ClientFirstFrames frames = Answered();
    frames.Add(BytesOf(other));
    EXPECT_TRUE(frames.needs_grpc());
    EXPECT_EQ(frames.opening(), absl::StrCat(kPreface, kClientSettings));
    EXPECT_EQ(frames.behind(), other);
  }
  ClientFirstFrames frames = Answered();
  frames.Add(BytesOf(kAcknowledged + kAcknowledged));
  EXPECT_TRUE(frames.needs_grpc()) << "one SETTINGS frame was sent";
  EXPECT_EQ(frames.behind(), kAcknowledged);
}

TEST(ClientFirstFramesTest, AnswersPings) {
  ClientFirstFrames frames = Answered();
  EXPECT_EQ(frames.TakePingAnswers(), "");
  frames.Add(BytesOf(kPing1 + kMoreWindow + kPing2));
  EXPECT_FALSE(frames.needs_grpc());
  EXPECT_EQ(frames.TakePingAnswers(),
            Frame(kPing, kAck, 0, "12345678") + Frame(kPing, kAck, 0, "abcdefgh"));
  EXPECT_EQ(frames.TakePingAnswers(), "");
  frames.Add(BytesOf(kPing2 + kCall));
  EXPECT_TRUE(frames.needs_grpc());
  EXPECT_EQ(frames.behind(), kPing2 + kCall) << "the second ping is not acknowledged";
  EXPECT_EQ(frames.TakePingAnswers(), "");
}

TEST(ClientFirstFramesTest, SendsNothingBeforeTheFirstSettings) {
  for (const std::string& first : {kMoreWindow, kAcknowledged, kPing1}) {
    ClientFirstFrames frames;
    frames.Add(BytesOf(absl::StrCat(kPreface, first, kClientSettings)));
    EXPECT_TRUE(frames.needs_grpc());
    EXPECT_EQ(frames.opening(), kPreface);
    EXPECT_EQ(frames.behind(), first + kClientSettings);
  }
}

TEST(ClientFirstFramesTest, BoundsBufferedBytes) {
  ClientFirstFrames frames = Answered();
  std::size_t size = kPreface.size() + kClientSettings.size();
  for (; size + kMoreWindow.size() <= kMaxFirstBytes; size += kMoreWindow.size()) {
    frames.Add(BytesOf(kMoreWindow));
    ASSERT_FALSE(frames.needs_grpc());
  }
  frames.Add(BytesOf(kMoreWindow.substr(0, 9)));
  EXPECT_TRUE(frames.needs_grpc());
}

TEST(AcknowledgementFilterTest, DropsSurplusAcknowledgements) {
  AcknowledgementFilter filter(1, 2);
  const std::string data = Frame(kData, 0, 1, kAcknowledged);
  EXPECT_EQ(filter.Take(BytesOf(kServerSettings + kAcknowledged + kAcknowledged + data)),
            kServerSettings + kAcknowledged + data);
  EXPECT_FALSE(filter.is_over());
  EXPECT_EQ(filter.Take(BytesOf(kAcknowledged + kAcknowledged + "any")), kAcknowledged + "any");
  EXPECT_TRUE(filter.is_over());
  EXPECT_EQ(filter.Take(BytesOf(kAcknowledged)), kAcknowledged);
}

TEST(AllowsDefaultWindowTest, ReadsTheFirstFrame) {
  const auto window = [](absl::string_view value) {
    return Frame(kSettings, 0, 0, absl::StrCat(absl::string_view("\0\3abcd\0\4", 8), value));
  };
  EXPECT_TRUE(AllowsDefaultWindow(BytesOf(kServerSettings + "any"))) << "the default one";
  EXPECT_TRUE(AllowsDefaultWindow(BytesOf(window(absl::string_view("\0\0\xff\xff", 4)))));
  EXPECT_FALSE(AllowsDefaultWindow(BytesOf(window(absl::string_view("\0\0\xff\xfe", 4)))));
  EXPECT_FALSE(AllowsDefaultWindow(BytesOf(kServerSettings.substr(0, 12)))) << "not whole";
  EXPECT_FALSE(AllowsDefaultWindow(BytesOf(kCall)));
  EXPECT_FALSE(AllowsDefaultWindow(BytesOf("")));
}

// A byte stream split at random yields the same output to both sides as an unsplit one.
TEST(FirstFramesTest, SplittingTheBytesMakesNoDifference) {
  const std::uint32_t seed = std::random_device()();
  SCOPED_TRACE(::testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  const std::string client =
      absl::StrCat(kPreface, kClientSettings, kPing1, kAcknowledged, kMoreWindow, kPing2, kCall);
  const std::string server = absl::StrCat(kServerSettings, kMoreWindow, kAcknowledged, "answer");
  const auto in_pieces = [&](const std::string& bytes, const auto& take) {
    for (std::size_t begin = 0; begin < bytes.size();) {
      const std::size_t size = std::min<std::size_t>(1 + random() % 20, bytes.size() - begin);
      take(bytes.substr(begin, size));
      begin += size;
    }
  };
  for (int i = 0; i < 200; ++i) {
    ClientFirstFrames from_client;
    from_client.NoteSettingsSent();
    in_pieces(client, [&](const std::string& piece) { from_client.Add(BytesOf(piece)); });
    ASSERT_EQ(from_client.opening(), absl::StrCat(kPreface, kClientSettings, kMoreWindow));
    ASSERT_EQ(from_client.behind(), kPing1 + kPing2 + kCall);
    AcknowledgementFilter filter(0, 1);
    std::string passed;
    in_pieces(server, [&](const std::string& piece) { passed += filter.Take(BytesOf(piece)); });
    ASSERT_EQ(passed, absl::StrCat(kServerSettings, kMoreWindow, "answer"));
    ASSERT_TRUE(filter.is_over());
  }
}

TEST(FirstFramesTest, SettingsDoNotDependOnMemory) {
  EXPECT_EQ(SettingsFrame(258, 16384),
            Frame(kSettings, 0, 0, absl::string_view("\0\3\0\0\1\2\0\6\0\0\x40\0", 12)));
}

}  // namespace
}  // namespace quire::server
