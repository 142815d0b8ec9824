#pragma once

// Limits the resources that one HTTP/2 connection makes gRPC use, before gRPC sees the bytes.
//
// gRPC 1.51 has few limits. It does not count resets and control frames, and it keeps incomplete
// messages until the connection closes. It enforces its stream limit only after the client has
// acknowledged the server's SETTINGS. A FrameGuard reads the frame headers of both directions (RFC
// 9113, sections 4.1, 5.1 and 6). It also reads the five bytes before each gRPC message, which are
// a flag and the length. It reports exceeded limits and never changes bytes.
//
// Place:      inside GuardedConnection, one for each connection.
// Invariants: the first HEADERS frame of a stream opens it. A stream is closed when either side
//             resets it, when the client sends padded DATA on it, when the server ends it, or when
//             TakeLateStreams returns it. At most max_streams are open, and at most
//             max_early_streams until the client acknowledges SETTINGS. unfinished_bytes() is the
//             number of received bytes of incomplete messages, over all streams. After an error the
//             caller closes the connection and passes no more bytes.
// Threads:    one thread at a time.

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace quire::server {

struct FrameLimits {
  std::int64_t max_streams = 0;  // the value that the server announces
  // The limit before the client acknowledges the server's SETTINGS. Go, Netty and nghttp2 open at
  // most 100 streams until they know the limit. RFC 9113, section 6.5.2, advises against a lower
  // limit.
  std::int64_t max_early_streams = 100;
  std::int64_t max_header_block_bytes = 0;  // HEADERS and its CONTINUATIONs, compressed
  // Limits per second:
  std::int64_t max_resets = 0;          // RST_STREAM; padded DATA also causes a reset
  std::int64_t max_control_frames = 0;  // SETTINGS, PING, GOAWAY, PRIORITY, unknown, empty DATA
  std::int64_t max_window_updates = 0;
  std::int64_t max_header_bytes = 0;
  // Limits of incomplete messages:
  std::int64_t max_unfinished_bytes = 0;
  absl::Duration message_timeout;  // from the first byte of a message to its last
};

class FrameGuard {
 public:
  explicit FrameGuard(const FrameLimits& limits) : limits_(limits) {}

  // Counts the next bytes of the client, which may be split anywhere. Returns INVALID_ARGUMENT if
  // they are not HTTP/2, and RESOURCE_EXHAUSTED if a limit is exceeded. The error message contains
  // limit and value.
  absl::Status OnClientBytes(std::span<const std::byte> bytes, absl::Time now);
  // Counts the next bytes of the server.
  void OnServerBytes(std::span<const std::byte> bytes);

  // Returns the streams whose message has exceeded message_timeout, and counts them as closed. The
  // caller resets them.
  std::vector<std::uint32_t> TakeLateStreams(absl::Time now);

  // Returns true once the client's preface is complete.
  bool has_preface() const { return preface_bytes_ == kPrefaceBytes; }
  // Return true if no frame or header block is incomplete in this direction, so that a frame of our
  // own may be inserted.
  bool is_between_client_frames() const { return client_.IsBetweenFrames(); }
  bool is_between_server_frames() const { return server_.IsBetweenFrames(); }
  // Returns the number of bytes that the server has yet to send of the current frame header or
  // payload, at least 1. Between two frames this is the size of a frame header.
  std::size_t missing_server_bytes() const { return server_.MissingBytes(); }
  std::size_t num_streams() const { return streams_.size(); }
  std::int64_t unfinished_bytes() const { return unfinished_bytes_; }
  std::uint32_t last_stream() const { return last_stream_; }
  const FrameLimits& limits() const { return limits_; }

  absl::Status CheckIntegrity() const;

 private:
  static constexpr std::size_t kPrefaceBytes = 24;
  static constexpr std::size_t kHeaderBytes = 9;
  static constexpr std::size_t kPrefixBytes = 5;

  // Splits the bytes of one direction into frames.
  struct FrameSplitter {
    // Takes the bytes of a frame's header. Returns true when the header is complete.
    bool TakeHeader(std::span<const std::byte>* bytes);
    // Takes and returns bytes of the current payload.
    std::span<const std::byte> TakePayload(std::span<const std::byte>* bytes);
    bool IsBetweenFrames() const { return num_header_bytes == 0 && !is_block_open; }
    // Returns the missing bytes of the current header or payload.
    std::size_t MissingBytes() const {
      return num_header_bytes < kHeaderBytes ? kHeaderBytes - num_header_bytes : payload_left;
    }

    std::array<std::uint8_t, kHeaderBytes> header = {};
    std::size_t num_header_bytes = 0;  // received for the current frame
    std::uint32_t payload_left = 0;
    std::uint8_t type = 0;
    std::uint8_t flags = 0;
    std::uint32_t stream = 0;
    bool is_block_open = false;  // only CONTINUATION may follow
  };

  // The client's half of a stream.
  struct Stream {
    std::array<std::uint8_t, kPrefixBytes> prefix = {};
    std::size_t num_prefix_bytes = 0;  // received for the current message
    std::uint32_t message_left = 0;
    std::int64_t unfinished_bytes = 0;  // received for the current message, prefix included
    absl::Time message_start;           // arrival of its first byte
  };

  // Counts events within one second.
  struct Rate {
    bool Add(std::int64_t amount, std::int64_t limit, absl::Time now);
    absl::Time second = absl::InfinitePast();
    std::int64_t count = 0;
  };

  std::size_t CheckPreface(std::span<const std::byte> bytes);
  absl::Status OnClientHeader(absl::Time now);
  absl::Status OnHeaders(absl::Time now);
  absl::Status OnHeaderBlock(absl::Time now);
  absl::Status OnMessageBytes(std::span<const std::byte> bytes, absl::Time now);
  absl::Status CheckRate(Rate* rate, std::int64_t amount, std::int64_t limit,
                         absl::string_view name, absl::Time now);
  void CloseStream(std::uint32_t stream);

  const FrameLimits limits_;
  std::size_t preface_bytes_ = 0;
  FrameSplitter client_, server_;
  absl::flat_hash_map<std::uint32_t, Stream> streams_;
  bool has_acknowledged_ = false;  // the client has acknowledged the server's SETTINGS
  std::uint32_t last_stream_ = 0;
  std::int64_t block_bytes_ = 0;  // size of the current header block so far
  std::int64_t unfinished_bytes_ = 0;
  Rate resets_, control_frames_, window_updates_, header_bytes_;
};

enum class Http2Code : std::uint32_t { kNoError = 0, kEnhanceYourCalm = 11 };
// Returns a GOAWAY frame, which tells a client why its connection ends (RFC 9113, section 6.8).
std::string GoAwayFrame(std::uint32_t last_stream, Http2Code code, absl::string_view why);
// Returns a RST_STREAM frame, which ends a stream.
std::string RstStreamFrame(std::uint32_t stream, Http2Code code);

// Returns the server's preface: a SETTINGS frame that changes nothing.
std::string EmptySettingsFrame();

}  // namespace quire::server
