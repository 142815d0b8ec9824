#pragma once

// The frames with which an HTTP/2 connection begins, as far as the guard answers them in gRPC's
// place: a client that has no call to make says nothing else than these and pings, and gRPC would
// take two descriptors and about 20 KiB for it.
//
// A client need not wait for the server's preface before it sends its own and calls (RFC 9113,
// section 3.4), but gRPC's clients begin no call before they have the server's SETTINGS, and others
// want theirs acknowledged in time. So the guard sends both. Its SETTINGS promise no more than any
// server has to take. gRPC's own, whose windows and frames depend on its memory at the time, reach
// the client with the first call, and a message of more than 64 KiB waits for these.
//
// gRPC must not meet that call before its SETTINGS are acknowledged, or it does not hold the client
// to its limit of headers. So what the client has acknowledged counts for gRPC's SETTINGS too: they
// say the same but for larger windows and frames. The client's own acknowledgement of them is left
// out.
//
// Place:      inside GuardedConnection; FrameGuard has counted the client's bytes before.
// Invariants: no byte is lost and none comes twice, but for acknowledgements: each side gets as
//             many as it has sent SETTINGS. Of a client that does not need gRPC at most
//             kMaxFirstBytes are held, and a frame's header.
// Threads:    one at a time.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "absl/strings/string_view.h"

namespace quire::server {

constexpr std::size_t kMaxFirstBytes = 512;
constexpr std::size_t kPingFrameBytes = 17;  // RFC 9113, section 6.7

// Of the client, which is to be answered once its SETTINGS are there.
class ClientFirstFrames {
 public:
  // What it sends next, in pieces of any size, from its first byte on.
  void Add(std::span<const std::byte> bytes);
  // It is being sent the guard's SETTINGS, so it may acknowledge them.
  void NoteSettingsSent() { has_settings_ = true; }

  // A call has begun, or something else has come that only gRPC answers.
  bool needs_grpc() const { return needs_grpc_; }
  // It is a GOAWAY: no call of the client follows.
  bool says_goodbye() const { return says_goodbye_; }
  // Complete SETTINGS frames, each to be acknowledged.
  int num_settings() const { return num_settings_; }
  bool has_acknowledged() const { return has_acknowledged_; }
  // The answers to pings that have come since the last time.
  std::string TakePingAnswers();

  // The preface, SETTINGS and windows of the connection.
  absl::string_view opening() const { return opening_; }
  // All that came behind, but for the acknowledgement and pings whose answers were taken.
  absl::string_view behind() const { return behind_; }

 private:
  bool TakeFrame();

  std::string opening_;
  std::string behind_;  // not yet looked at, or for gRPC
  std::string pings_;   // frames without an answer; empty once gRPC is needed
  int num_settings_ = 0;
  bool has_settings_ = false;
  bool has_acknowledged_ = false;
  bool needs_grpc_ = false;
  bool says_goodbye_ = false;
};

// Leaves acknowledgements of SETTINGS out of a direction's frames.
class AcknowledgementFilter {
 public:
  // Some pass, then others are dropped, and all behind them pass.
  AcknowledgementFilter(int num_passed, int num_dropped)
      : passed_left_(num_passed), dropped_left_(num_dropped) {}

  // What passes of these bytes, and of the header of a frame that was not whole before.
  std::string Take(std::span<const std::byte> bytes);
  // All bytes from now on pass.
  bool is_over() const { return dropped_left_ == 0; }

 private:
  int passed_left_, dropped_left_;
  std::string head_;  // of a frame, not whole
  std::size_t payload_left_ = 0;
};

// Whether the SETTINGS frame with which a server's bytes begin is there, and allows each stream as
// much as the guard's does.
bool AllowsDefaultWindow(std::span<const std::byte> bytes);

// The guard's SETTINGS frame (RFC 9113, section 6.5.2): what it counts, and what gRPC refuses.
std::string SettingsFrame(std::int64_t max_streams, std::int64_t max_header_list_bytes);

// A SETTINGS frame that acknowledges (RFC 9113, section 6.5.3).
std::string SettingsAcknowledgement();

}  // namespace quire::server
