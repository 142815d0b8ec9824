#include "server/edge/frame_guard.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace quire::server {
namespace {

constexpr absl::string_view kPreface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

// RFC 9113, section 6.
enum FrameType : std::uint8_t {
  kData = 0,
  kHeaders = 1,
  kPriority = 2,
  kRstStream = 3,
  kSettings = 4,
  kPushPromise = 5,
  kPing = 6,
  kGoAway = 7,
  kWindowUpdate = 8,
  kContinuation = 9,
};
constexpr std::uint8_t kEndStream = 0x1;
constexpr std::uint8_t kAckFlag = 0x1;
constexpr std::uint8_t kEndHeaders = 0x4;
constexpr std::uint8_t kPadded = 0x8;

std::uint32_t BigEndian(const std::uint8_t* bytes, int size) {
  std::uint32_t value = 0;
  for (int i = 0; i < size; ++i) value = value << 8 | bytes[i];
  return value;
}

void AppendBigEndian(std::uint32_t value, int size, std::string* out) {
  for (int i = size - 1; i >= 0; --i) out->push_back(static_cast<char>(value >> (8 * i)));
}

std::string Frame(FrameType type, std::uint32_t stream, absl::string_view payload) {
  std::string frame;
  AppendBigEndian(static_cast<std::uint32_t>(payload.size()), 3, &frame);
  frame.push_back(static_cast<char>(type));
  frame.push_back(0);
  AppendBigEndian(stream, 4, &frame);
  frame.append(payload.data(), payload.size());
  return frame;
}

}  // namespace

bool FrameGuard::FrameSplitter::TakeHeader(std::span<const std::byte>* bytes) {
  const std::size_t size = std::min(kHeaderBytes - num_header_bytes, bytes->size());
  std::memcpy(header.data() + num_header_bytes, bytes->data(), size);
  num_header_bytes += size;
  *bytes = bytes->subspan(size);
  if (num_header_bytes < kHeaderBytes) return false;
  payload_left = BigEndian(header.data(), 3);
  type = header[3];
  flags = header[4];
  stream = BigEndian(header.data() + 5, 4) & 0x7fffffff;
  if (type == kHeaders || type == kContinuation) is_block_open = (flags & kEndHeaders) == 0;
  return true;
}

std::span<const std::byte> FrameGuard::FrameSplitter::TakePayload(
    std::span<const std::byte>* bytes) {
  const std::span<const std::byte> payload =
      bytes->first(std::min<std::size_t>(payload_left, bytes->size()));
  payload_left -= static_cast<std::uint32_t>(payload.size());
  *bytes = bytes->subspan(payload.size());
  if (payload_left == 0) num_header_bytes = 0;
  return payload;
}

bool FrameGuard::Rate::Add(std::int64_t amount, std::int64_t limit, absl::Time now) {
  if (now - second >= absl::Seconds(1)) {
    second = now;
    count = 0;
  }
  count += amount;
  return count <= limit;
}

absl::Status FrameGuard::CheckRate(Rate* rate, std::int64_t amount, std::int64_t limit,
                                   absl::string_view name, absl::Time now) {
  if (rate->Add(amount, limit, now)) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("the connection sent ", rate->count, " ", name, " in a second, limit ", limit));
}

// Returns the number of leading bytes that belong to the preface, or bytes.size() + 1 if `bytes`
// differ from the preface.
std::size_t FrameGuard::CheckPreface(std::span<const std::byte> bytes) {
  const std::size_t size = std::min(kPrefaceBytes - preface_bytes_, bytes.size());
  if (std::memcmp(bytes.data(), kPreface.data() + preface_bytes_, size) != 0) {
    return bytes.size() + 1;
  }
  preface_bytes_ += size;
  return size;
}

absl::Status FrameGuard::OnClientBytes(std::span<const std::byte> bytes, absl::Time now) {
  static_assert(kPreface.size() == kPrefaceBytes);
  if (!has_preface()) {
    const std::size_t size = CheckPreface(bytes);
    if (size > bytes.size()) {
      return absl::InvalidArgumentError("the connection does not begin with the HTTP/2 preface");
    }
    bytes = bytes.subspan(size);
  }
  while (!bytes.empty()) {
    if (client_.num_header_bytes < kHeaderBytes) {
      if (!client_.TakeHeader(&bytes)) break;
      QUIRE_RETURN_IF_ERROR(OnClientHeader(now));
    }
    const std::span<const std::byte> payload = client_.TakePayload(&bytes);
    if (client_.type == kData && !(client_.flags & kPadded)) {
      QUIRE_RETURN_IF_ERROR(OnMessageBytes(payload, now));
    }
  }
  return absl::OkStatus();
}

absl::Status FrameGuard::OnClientHeader(absl::Time now) {
  switch (client_.type) {
    case kHeaders:
      return OnHeaders(now);
    case kContinuation:
      return OnHeaderBlock(now);
    case kRstStream:
      CloseStream(client_.stream);
      return CheckRate(&resets_, 1, limits_.max_resets, "resets of streams", now);
    case kWindowUpdate:
      return CheckRate(&window_updates_, 1, limits_.max_window_updates, "WINDOW_UPDATE frames",
                       now);
    case kData:
      // gRPC resets the stream of a padded message, which costs as much as a reset by the client.
      if (client_.flags & kPadded) {
        CloseStream(client_.stream);
        return CheckRate(&resets_, 1, limits_.max_resets, "resets of streams", now);
      }
      if (client_.payload_left > 0 || (client_.flags & kEndStream)) return absl::OkStatus();
      break;
    case kSettings:
      has_acknowledged_ |=
          (client_.flags & kAckFlag) != 0 && client_.stream == 0 && client_.payload_left == 0;
      break;
    default:
      break;
  }
  return CheckRate(&control_frames_, 1, limits_.max_control_frames, "control frames", now);
}

absl::Status FrameGuard::OnHeaders(absl::Time now) {
  block_bytes_ = 0;
  if (client_.stream > last_stream_) {
    last_stream_ = client_.stream;
    const auto open = static_cast<std::int64_t>(streams_.size()) + 1;
    if (open > limits_.max_streams) {
      return absl::ResourceExhaustedError(absl::StrCat(
          "the connection opened ", open,
          " streams at once, server.grpc.max_concurrent_streams is ", limits_.max_streams));
    }
    if (!has_acknowledged_ && open > limits_.max_early_streams) {
      return absl::ResourceExhaustedError(absl::StrCat(
          "the connection opened ", open,
          " streams at once and has not acknowledged SETTINGS, limit ", limits_.max_early_streams));
    }
    streams_.try_emplace(client_.stream);
  }
  return OnHeaderBlock(now);
}

absl::Status FrameGuard::OnHeaderBlock(absl::Time now) {
  block_bytes_ += client_.payload_left;
  if (block_bytes_ > limits_.max_header_block_bytes) {
    return absl::ResourceExhaustedError(absl::StrCat("the headers of a call have ", block_bytes_,
                                                     " bytes or more, limit ",
                                                     limits_.max_header_block_bytes));
  }
  // The frame's own header counts too, so that many empty frames exceed the limit.
  QUIRE_RETURN_IF_ERROR(CheckRate(&header_bytes_, client_.payload_left + kHeaderBytes,
                                  limits_.max_header_bytes, "bytes of headers", now));
  if (client_.type == kContinuation && client_.payload_left == 0 &&
      !(client_.flags & kEndHeaders)) {
    return CheckRate(&control_frames_, 1, limits_.max_control_frames, "control frames", now);
  }
  return absl::OkStatus();
}

absl::Status FrameGuard::OnMessageBytes(std::span<const std::byte> bytes, absl::Time now) {
  const auto found = streams_.find(client_.stream);
  if (found == streams_.end())
    return absl::OkStatus();  // the stream has ended; gRPC drops further bytes
  Stream& stream = found->second;
  while (!bytes.empty()) {
    if (stream.unfinished_bytes == 0) stream.message_start = now;
    std::size_t size = 0;
    if (stream.num_prefix_bytes < kPrefixBytes) {
      size = std::min(kPrefixBytes - stream.num_prefix_bytes, bytes.size());
      std::memcpy(stream.prefix.data() + stream.num_prefix_bytes, bytes.data(), size);
      stream.num_prefix_bytes += size;
      if (stream.num_prefix_bytes == kPrefixBytes) {
        stream.message_left = BigEndian(stream.prefix.data() + 1, 4);
      }
    } else {
      size = std::min<std::size_t>(stream.message_left, bytes.size());
      stream.message_left -= static_cast<std::uint32_t>(size);
    }
    bytes = bytes.subspan(size);
    stream.unfinished_bytes += static_cast<std::int64_t>(size);
    unfinished_bytes_ += static_cast<std::int64_t>(size);
    if (stream.num_prefix_bytes == kPrefixBytes && stream.message_left == 0) {
      unfinished_bytes_ -= stream.unfinished_bytes;
      stream = Stream{};
    }
  }
  if (unfinished_bytes_ <= limits_.max_unfinished_bytes) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("the incomplete messages of the connection have ", unfinished_bytes_,
                   " bytes, limit ", limits_.max_unfinished_bytes));
}

void FrameGuard::OnServerBytes(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    if (server_.num_header_bytes < kHeaderBytes) {
      if (!server_.TakeHeader(&bytes)) return;
      const bool ends =
          (server_.type == kHeaders || server_.type == kData) && (server_.flags & kEndStream) != 0;
      if (ends || server_.type == kRstStream) CloseStream(server_.stream);
    }
    server_.TakePayload(&bytes);
  }
}

void FrameGuard::CloseStream(std::uint32_t stream) {
  const auto found = streams_.find(stream);
  if (found == streams_.end()) return;
  unfinished_bytes_ -= found->second.unfinished_bytes;
  streams_.erase(found);
}

std::vector<std::uint32_t> FrameGuard::TakeLateStreams(absl::Time now) {
  std::vector<std::uint32_t> late;
  if (unfinished_bytes_ == 0) return late;
  for (const auto& [id, stream] : streams_) {
    if (stream.unfinished_bytes == 0 || now - stream.message_start < limits_.message_timeout)
      continue;
    late.push_back(id);
  }
  for (const std::uint32_t id : late) CloseStream(id);
  return late;
}

absl::Status FrameGuard::CheckIntegrity() const {
  if (static_cast<std::int64_t>(streams_.size()) > limits_.max_streams) {
    return absl::InternalError("more streams are open than max_streams");
  }
  std::int64_t sum = 0;
  for (const auto& [id, stream] : streams_) {
    if (id > last_stream_) return absl::InternalError("a stream is newer than the last one");
    if (stream.unfinished_bytes < static_cast<std::int64_t>(stream.num_prefix_bytes)) {
      return absl::InternalError("a prefix has more bytes than its message");
    }
    sum += stream.unfinished_bytes;
  }
  if (sum != unfinished_bytes_) return absl::InternalError("unfinished bytes do not add up");
  return absl::OkStatus();
}

std::string GoAwayFrame(std::uint32_t last_stream, Http2Code code, absl::string_view why) {
  std::string payload;
  AppendBigEndian(last_stream, 4, &payload);
  AppendBigEndian(static_cast<std::uint32_t>(code), 4, &payload);
  payload.append(why.data(), why.size());
  return Frame(kGoAway, 0, payload);
}

std::string RstStreamFrame(std::uint32_t stream, Http2Code code) {
  std::string payload;
  AppendBigEndian(static_cast<std::uint32_t>(code), 4, &payload);
  return Frame(kRstStream, stream, payload);
}

std::string EmptySettingsFrame() {
  return Frame(kSettings, 0, "");
}

}  // namespace quire::server
