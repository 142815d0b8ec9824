#include "server/edge/first_frames.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace quire::server {
namespace {

constexpr std::size_t kClientPrefaceBytes = 24;
constexpr std::size_t kHeadBytes = 9;
constexpr std::size_t kSettingBytes = 6;
constexpr std::size_t kWindowBytes = 4;
constexpr std::size_t kPingBytes = kPingFrameBytes - kHeadBytes;
constexpr std::size_t kFlagsAt = 4;  // in the header of a frame
constexpr char kAckFlag = 1;         // a flag

// The header of a frame (RFC 9113, section 4.1).
struct FrameHead {
  enum Type : std::uint8_t {
    kSettingsFrame = 4,
    kPingFrame = 6,
    kGoAwayFrame = 7,
    kWindowFrame = 8
  };

  explicit FrameHead(absl::string_view bytes) {
    const auto at = [&](std::size_t i) { return std::size_t{static_cast<std::uint8_t>(bytes[i])}; };
    frame_bytes = kHeadBytes + (at(0) << 16 | at(1) << 8 | at(2));
    type = static_cast<std::uint8_t>(at(3));
    is_acknowledgement = (at(kFlagsAt) & kAckFlag) != 0;
    is_of_connection = ((at(5) & 0x7f) | at(6) | at(7) | at(8)) == 0;
  }

  std::size_t payload_bytes() const { return frame_bytes - kHeadBytes; }
  bool IsSettings() const {
    return type == kSettingsFrame && is_of_connection && !is_acknowledgement &&
           payload_bytes() % kSettingBytes == 0;
  }
  bool IsAcknowledgement() const {
    return type == kSettingsFrame && is_of_connection && is_acknowledgement && payload_bytes() == 0;
  }
  bool IsWindow() const {
    return type == kWindowFrame && is_of_connection && payload_bytes() == kWindowBytes;
  }
  bool IsPing() const {
    return type == kPingFrame && is_of_connection && !is_acknowledgement &&
           payload_bytes() == kPingBytes;
  }

  std::size_t frame_bytes = 0;
  std::uint8_t type = 0;
  bool is_acknowledgement = false;
  bool is_of_connection = false;
};

absl::string_view Text(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace

void ClientFirstFrames::Add(std::span<const std::byte> bytes) {
  behind_.append(Text(bytes).data(), bytes.size());
  if (opening_.empty()) {
    if (behind_.size() < kClientPrefaceBytes) return;
    opening_ = behind_.substr(0, kClientPrefaceBytes);
    behind_.erase(0, kClientPrefaceBytes);
  }
  while (!needs_grpc_ && TakeFrame()) {
  }
}

// False where the next frame is not complete, or not for the guard to answer.
bool ClientFirstFrames::TakeFrame() {
  if (behind_.size() < kHeadBytes) return false;
  const FrameHead head(behind_);
  const bool is_awaited = head.IsAcknowledgement() && has_settings_ && !has_acknowledged_;
  const bool is_ping = head.IsPing() && num_settings_ > 0;
  const bool is_kept = head.IsSettings() || (head.IsWindow() && num_settings_ > 0);
  const std::size_t kept_bytes = opening_.size() + (is_kept ? head.frame_bytes : 0);
  if ((!is_awaited && !is_kept && !is_ping) || kept_bytes > kMaxFirstBytes) {
    needs_grpc_ = true;
    behind_.insert(0, std::exchange(pings_, {}));
    says_goodbye_ = head.type == FrameHead::kGoAwayFrame;
    return false;
  }
  if (behind_.size() < head.frame_bytes) return false;
  if (is_kept) opening_.append(behind_, 0, head.frame_bytes);
  if (is_ping) pings_.append(behind_, 0, head.frame_bytes);
  behind_.erase(0, head.frame_bytes);
  num_settings_ += head.IsSettings() ? 1 : 0;
  has_acknowledged_ |= is_awaited;
  return true;
}

// A ping comes back as it is, but for the flag (RFC 9113, section 6.7).
std::string ClientFirstFrames::TakePingAnswers() {
  std::string answers = std::exchange(pings_, {});
  for (std::size_t at = 0; at < answers.size(); at += kPingFrameBytes) {
    answers[at + kFlagsAt] |= kAckFlag;
  }
  return answers;
}

std::string AcknowledgementFilter::Take(std::span<const std::byte> bytes) {
  std::string passed;
  absl::string_view text = Text(bytes);
  const auto take = [&text](std::size_t size, std::string* to) {
    size = std::min(size, text.size());
    to->append(text.data(), size);
    text.remove_prefix(size);
    return size;
  };
  while (!text.empty() && !is_over()) {
    payload_left_ -= take(payload_left_, &passed);
    take(payload_left_ > 0 ? 0 : kHeadBytes - head_.size(), &head_);
    if (head_.size() < kHeadBytes) continue;
    const FrameHead head(head_);
    payload_left_ = head.payload_bytes();
    const bool is_dropped = head.IsAcknowledgement() && passed_left_ == 0;
    if (is_dropped) {
      --dropped_left_;
    } else {
      passed += head_;
      passed_left_ -= head.IsAcknowledgement() ? 1 : 0;
    }
    head_.clear();
  }
  take(text.size(), &passed);
  return passed;
}

bool AllowsDefaultWindow(std::span<const std::byte> bytes) {
  constexpr std::uint32_t kInitialWindowSize = 4, kDefaultWindow = 65535;
  absl::string_view text = Text(bytes);
  if (text.size() < kHeadBytes) return false;
  const FrameHead head(text);
  if (!head.IsSettings() || text.size() < head.frame_bytes) return false;
  const auto number = [&text](std::size_t at, std::size_t size) {
    std::uint32_t value = 0;
    for (std::size_t i = at; i < at + size; ++i)
      value = value << 8 | static_cast<std::uint8_t>(text[i]);
    return value;
  };
  for (std::size_t at = kHeadBytes; at < head.frame_bytes; at += kSettingBytes) {
    if (number(at, 2) == kInitialWindowSize && number(at + 2, 4) < kDefaultWindow) return false;
  }
  return true;
}

std::string SettingsFrame(std::int64_t max_streams, std::int64_t max_header_list_bytes) {
  constexpr std::uint8_t kMaxConcurrentStreams = 3, kMaxHeaderListSize = 6;
  std::string frame("\0\0\14\4\0\0\0\0\0", kHeadBytes);
  for (const auto& [id, value] : {std::pair(kMaxConcurrentStreams, max_streams),
                                  std::pair(kMaxHeaderListSize, max_header_list_bytes)}) {
    const auto bits = static_cast<std::uint32_t>(
        std::min<std::int64_t>(value, std::numeric_limits<std::uint32_t>::max()));
    frame.push_back('\0');
    frame.push_back(static_cast<char>(id));
    for (int i = 3; i >= 0; --i) frame.push_back(static_cast<char>(bits >> (8 * i)));
  }
  return frame;
}

std::string SettingsAcknowledgement() {
  return std::string("\0\0\0\4\1\0\0\0\0", kHeadBytes);
}

}  // namespace quire::server
