#include "server/edge/guarded_connection.h"

#include <algorithm>
#include <boost/asio/post.hpp>
#include <boost/asio/write.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/logging.h"

namespace quire::server {
namespace {

namespace net = boost::asio;

// For a client to read why it is refused, before its connection is closed under what it still
// sends.
constexpr absl::Duration kLingerTime = absl::Seconds(1);
// What a GOAWAY names as the last stream while more may come (RFC 9113, section 6.8).
constexpr std::uint32_t kAllStreams = 0x7fffffff;
// Of a read while calls are more than the connection's allowance: their wait is for few of them at
// a time, where 64 KiB are a thousand.
constexpr std::size_t kBytesOfManyCalls = 4 << 10;

// By this clients of gRPC know that they are to ping half as often (gRFC A8).
constexpr absl::string_view kTooManyPings = "too_many_pings";

}  // namespace

absl::string_view CloseCauseName(CloseCause cause) {
  switch (cause) {
    case CloseCause::kTooMany:
      return "too_many";
    case CloseCause::kSilent:
      return "silent";
    case CloseCause::kIdle:
      return "idle";
    case CloseCause::kNotHttp2:
      return "not_http2";
    case CloseCause::kFrames:
      return "frames";
    case CloseCause::kMemory:
      return "memory";
    case CloseCause::kTimeout:
      return "timeout";
    case CloseCause::kNoResource:
      return "no_resource";
  }
  return "";
}

std::span<const std::byte> GuardedConnection::Buffer::Filled(std::size_t size) const {
  return std::span(bytes_).first(size);
}

std::size_t GuardedConnection::Buffer::Filter(AcknowledgementFilter* filter, std::size_t size) {
  const std::string passed = filter->Take(Filled(size));
  bytes_.resize(std::max(bytes_.size(), passed.size()));
  std::ranges::copy(std::as_bytes(std::span(passed)), bytes_.begin());
  return passed.size();
}

void GuardedConnection::Buffer::Adapt(std::size_t size) {
  if (size == bytes_.size() && size < kMaxBytes) {
    bytes_ = std::vector<std::byte>(2 * size);
  } else if (size < bytes_.size() / 4 && bytes_.size() > kMinBytes) {
    bytes_ = std::vector<std::byte>(bytes_.size() / 2);
  }
}

GuardedConnection::GuardedConnection(const GuardedConnectionHost* host, std::uint64_t number,
                                     std::unique_ptr<Transport> transport, Peer peer,
                                     const FrameLimits& limits, const ConnectionTimes& times)
    : departure_{host, number},
      host_(host),
      transport_(std::move(transport)),
      peer_(std::move(peer)),
      times_(times),
      begun_(MonotonicNow()),
      guard_(limits),
      pings_(limits.max_pings, limits.max_pings, 1 / absl::ToDoubleSeconds(limits.ping_interval)) {}

void GuardedConnection::Begin(absl::Time since) {
  net::post(transport_->executor(), [self = shared_from_this(), since] {
    self->begun_ = since;
    if (!self->Is(State::kHandshake)) return;
    self->transport_->Handshake([self](Error error) { self->OnHandshake(error); });
  });
}

void GuardedConnection::OnHandshake(Error error) {
  if (!Is(State::kHandshake)) return;
  if (error) return Close();
  peer_.certificate_name = transport_->CertificateName();
  Set(State::kPreface);
  ReadClient();
}

void GuardedConnection::TurnAway(CloseCause cause, const absl::Status& why) {
  net::post(transport_->executor(), [self = shared_from_this(), cause, why] {
    self->EndWith(cause, why);
    self->ReadClient();
  });
}

void GuardedConnection::ReadClient() {
  if (Is(State::kClosed)) return;
  const auto room = from_client_.ForRead();
  transport_->ReadSome(begins_many_calls_ ? net::buffer(room, kBytesOfManyCalls) : room,
                       [self = shared_from_this()](Error error, std::size_t size) {
                         self->OnClientRead(error, size);
                       });
}

void GuardedConnection::OnClientRead(Error error, std::size_t size) {
  if (Is(State::kClosed)) return;
  if (error) return OnClientEnd();
  if (Is(State::kLingering)) return ReadClient();  // what it still sends is dropped
  const std::span<const std::byte> bytes = from_client_.Filled(size);
  const absl::Time now = MonotonicNow();
  const absl::Status counted = guard_.OnClientBytes(bytes, now);
  NoteCounts();
  if (!counted.ok()) {
    EndWith(absl::IsInvalidArgument(counted) ? CloseCause::kNotHttp2 : CloseCause::kFrames,
            counted);
    return ReadClient();
  }
  const absl::Duration wait = WaitForCalls(now);
  if (wait == absl::ZeroDuration()) return PassOn(size);
  holds_client_bytes_ = true;
  if (!pause_) pause_.emplace(transport_->executor());
  pause_->expires_after(absl::ToChronoMilliseconds(wait));
  pause_->async_wait([self = shared_from_this(), size](Error) { self->PassOn(size); });
}

absl::Duration GuardedConnection::WaitForCalls(absl::Time now) {
  const std::int64_t begun = guard_.num_begun() - std::exchange(num_paced_, guard_.num_begun());
  begins_many_calls_ = false;
  if (begun == 0) return absl::ZeroDuration();
  const double beyond = calls_.UseWhatIsThere(static_cast<double>(begun), now);
  begins_many_calls_ = beyond > 0;
  return beyond == 0 ? absl::ZeroDuration() : host_->pace(number(), beyond);
}

// What was read; the connection may have come to its end meanwhile.
void GuardedConnection::PassOn(std::size_t size) {
  if (Is(State::kClosed)) return;
  if (Is(State::kLingering)) return ReadClient();
  const std::span<const std::byte> bytes = from_client_.Filled(size);
  if (Is(State::kRelaying)) return RelayToServer(size);
  client_first_->Add(bytes);
  if (!guard_.has_preface()) return ReadClient();
  if (!client_first_->needs_grpc()) {
    AnswerFirstFrames();
    return ReadClient();
  }
  if (Is(State::kWaiting) && client_first_->says_goodbye()) {
    BeginToLinger();
    return ReadClient();
  }
  if (!ConnectToGrpc()) return ReadClient();
  BeginToRelay();
}

void GuardedConnection::RelayToServer(std::size_t size) {
  if (client_filter_) size = from_client_.Filter(&*client_filter_, size);
  if (client_filter_ && client_filter_->is_over()) client_filter_.reset();
  if (size == 0) return ReadClient();
  WriteServer(net::buffer(from_client_.Filled(size).data(), size));
}

// The client is ready to call, and gRPC hears of it when it does.
void GuardedConnection::AnswerFirstFrames() {
  const int num_new = client_first_->num_settings() - num_acknowledged_;
  const std::string pongs = client_first_->TakePingAnswers();
  if (num_new == 0 && pongs.empty()) return;
  const auto num_pings = static_cast<double>(pongs.size() / kPingFrameBytes);
  if (pings_.UseWhatIsThere(num_pings, MonotonicNow()) > 0) {
    const FrameLimits& limits = guard_.limits();
    return EndWith(CloseCause::kFrames,
                   absl::ResourceExhaustedError(absl::StrCat(
                       "the connection pings without a call, limit ", limits.max_pings,
                       " in a row and one in ", absl::FormatDuration(limits.ping_interval))),
                   kTooManyPings);
  }
  std::string frames;
  if (Is(State::kPreface)) {
    frames = host_->settings;
    client_first_->NoteSettingsSent();
    has_server_spoken_ = true;
    Set(State::kWaiting);
    host_->set_phase(number(), Phase::kIdle);
  }
  for (int i = 0; i < num_new; ++i) frames += SettingsAcknowledgement();
  num_acknowledged_ += num_new;
  Notify(frames + pongs);
}

// gRPC closes its end when it has read to here.
void GuardedConnection::OnClientEnd() {
  if (!Is(State::kRelaying)) return Close();
  has_client_ended_ = true;
  Error ignored;  // gRPC may have closed already
  server_->shutdown(net::local::stream_protocol::socket::shutdown_send, ignored);
}

bool GuardedConnection::ConnectToGrpc() {
  auto connected = host_->connect(number(), transport_->executor(), peer_);
  if (absl::IsUnavailable(connected.status())) {  // the process or the connection ends already
    if (num_acknowledged_ > 0) goodbye_ = GoAwayFrame(0, Http2Code::kNoError, "");
    BeginToLinger();
    return false;
  }
  if (!connected.ok()) {
    EndWith(CloseCause::kNoResource, connected.status());
    return false;
  }
  server_.emplace(std::move(connected->socket));
  Error ignored;  // then EndLate may wait for gRPC
  server_->non_blocking(true, ignored);
  departure_.name = std::move(connected->name);
  Set(State::kRelaying);
  is_busy_ = true;  // the host takes it for that
  NoteCounts();
  return true;
}

// A client that has been answered gets its calls to gRPC behind gRPC's own SETTINGS.
void GuardedConnection::BeginToRelay() {
  if (num_acknowledged_ == 0) {
    early_bytes_ = absl::StrCat(client_first_->opening(), client_first_->behind());
    client_first_.reset();
    WriteServer(net::buffer(early_bytes_));
    return ReadServer();
  }
  holds_client_bytes_ = true;
  const absl::string_view opening = client_first_->opening();
  Error error;
  if (server_->write_some(net::buffer(opening.data(), opening.size()), error) != opening.size()) {
    EndWith(CloseCause::kNoResource, absl::InternalError("a new socket pair takes no bytes"));
    return ReadClient();
  }
  server_filter_.emplace(/*num_passed=*/0, num_acknowledged_);
  ReadServer();
}

// gRPC has spoken, and nothing of the client has been read meanwhile. What the client has
// acknowledged, or will, is gRPC's to know if it holds for gRPC's SETTINGS too.
void GuardedConnection::PassOnRest(std::size_t size) {
  const bool holds = AllowsDefaultWindow(from_server_.Filled(size));
  const bool is_acknowledged = client_first_->has_acknowledged();
  std::string behind(client_first_->behind());
  client_first_.reset();
  if (holds || !is_acknowledged) {
    client_filter_.emplace(/*num_passed=*/holds && !is_acknowledged ? 1 : 0, /*num_dropped=*/1);
    behind = client_filter_->Take(std::as_bytes(std::span(behind)));
  }
  early_bytes_ = (holds && is_acknowledged ? SettingsAcknowledgement() : "") + behind;
  WriteServer(net::buffer(early_bytes_));
}

void GuardedConnection::WriteServer(net::const_buffer bytes) {
  holds_client_bytes_ = true;
  net::async_write(*server_, bytes,
                   [self = shared_from_this(), size = bytes.size()](Error, std::size_t) {
                     // After an error gRPC has closed, and the other direction ends the
                     // connection; what the client still sends is read and lost, since closing on
                     // unread bytes would take from the client what was sent to it.
                     self->holds_client_bytes_ = false;
                     self->early_bytes_ = std::string();
                     self->from_client_.Adapt(size);
                     self->ReadClient();
                   });
}

void GuardedConnection::ReadServer() {
  server_->async_read_some(from_server_.ForRead(),
                           [self = shared_from_this()](Error error, std::size_t size) {
                             self->OnServerRead(error, size);
                           });
}

void GuardedConnection::OnServerRead(Error error, std::size_t size) {
  if (!Is(State::kRelaying)) {
    if (client_first_) ReadClient();  // it waited for gRPC's first words
    return;
  }
  if (error && has_client_ended_) return Close();
  if (error) {
    BeginToLinger();
    if (client_first_) ReadClient();
    return;
  }
  has_server_spoken_ = true;
  if (client_first_) PassOnRest(size);
  if (server_filter_) size = from_server_.Filter(&*server_filter_, size);
  if (server_filter_ && server_filter_->is_over()) server_filter_.reset();
  if (size == 0) return ReadServer();
  OnServerBytes(size);
  if (std::exchange(parts_when_server_has_spoken_, false) && guard_.num_streams() == 0) {
    Part(/*makes_room=*/true);
  }
}

void GuardedConnection::OnServerBytes(std::size_t size) {
  // A notice of ours that is being written stands between two frames, so these come behind it.
  if (is_writing_to_client_) {
    held_bytes_ = size;
  } else {
    RelayToClient(size);
  }
}

void GuardedConnection::RelayToClient(std::size_t size) {
  guard_.OnServerBytes(from_server_.Filled(size));
  NoteCounts();
  WriteClient(net::buffer(from_server_.Filled(size).data(), size));
}

void GuardedConnection::WriteClient(net::const_buffer bytes) {
  is_writing_to_client_ = true;
  write_begun_ = MonotonicNow();
  transport_->Write(bytes,
                    [self = shared_from_this(), size = bytes.size()](Error error, std::size_t) {
                      self->is_writing_to_client_ = false;
                      self->from_server_.Adapt(size);
                      self->OnClientWritten(error);
                    });
}

void GuardedConnection::OnClientWritten(Error error) {
  if (Is(State::kClosed)) return;
  if (error) return Close();
  if (Is(State::kLingering)) return SayGoodbye();
  if (!notice_.empty() && guard_.is_between_server_frames()) {
    WriteNotice();
  }
  ReadServer();
}

void GuardedConnection::WriteNotice() {
  is_writing_to_client_ = true;
  write_begun_ = MonotonicNow();
  notice_being_written_ = std::exchange(notice_, {});
  transport_->Write(net::buffer(notice_being_written_),
                    [self = shared_from_this()](Error error, std::size_t) {
                      self->is_writing_to_client_ = false;
                      if (self->Is(State::kClosed)) return;
                      if (error) return self->Close();
                      if (self->Is(State::kLingering)) return self->SayGoodbye();
                      if (!self->notice_.empty()) return self->WriteNotice();
                      if (const std::size_t size = std::exchange(self->held_bytes_, 0)) {
                        self->RelayToClient(size);
                      }
                    });
}

// The client is told to make no more calls here. One that it has begun meanwhile, or begins before
// it knows, is served to its end. Clients of gRPC begin none before the server has spoken, so it is
// told behind that.
void GuardedConnection::Part(bool makes_room) {
  if (is_parting_) return;
  if (!has_server_spoken_) {
    parts_when_server_has_spoken_ = true;
    return;
  }
  if (makes_room) host_->count_closed(peer_, CloseCause::kIdle, "");
  is_parting_ = true;
  parting_since_ = MonotonicNow();
  Notify(GoAwayFrame(kAllStreams, Http2Code::kNoError, ""));
}

// gRPC does it alone for a connection of which it has heard from the start; of others it counts
// from their first call.
void GuardedConnection::PartForAge(absl::Time now) {
  if (num_acknowledged_ == 0 || Is(State::kLingering)) return;
  if (now - begun_ >= times_.age) Part(/*makes_room=*/false);
}

// Messages did not become complete in time: their calls end, and others of the connection go on,
// which may be those of other clients behind a proxy. Where a frame of the client stands open, or
// gRPC has not read all, the whole connection ends.
void GuardedConnection::EndLate(const std::vector<std::uint32_t>& late) {
  NoteCounts();
  const absl::Status why = absl::DeadlineExceededError(
      absl::StrCat("a message is not complete ",
                   absl::FormatDuration(guard_.limits().message_timeout), " after its first byte"));
  std::string resets;
  for (const std::uint32_t stream : late) {
    resets += RstStreamFrame(stream, Http2Code::kEnhanceYourCalm);
  }
  Error error;
  const bool are_reset = !holds_client_bytes_ && guard_.is_between_client_frames() &&
                         server_->write_some(net::buffer(resets), error) == resets.size();
  if (!are_reset) return EndWith(CloseCause::kTimeout, why);
  log::Info("grpc", "calls ended",
            {{"peer", peer_.address}, {"calls", late.size()}, {"why", why.message()}});
  Notify(resets);
}

// Puts whole frames of ours behind those of the server.
void GuardedConnection::Notify(absl::string_view frames) {
  notice_.append(frames.data(), frames.size());
  if (!is_writing_to_client_ && guard_.is_between_server_frames()) WriteNotice();
}

// What other threads see of the guard.
void GuardedConnection::NoteCounts() {
  const std::int64_t before = unfinished_bytes_.exchange(guard_.unfinished_bytes());
  if (before != guard_.unfinished_bytes()) {
    host_->add_unfinished_bytes(guard_.unfinished_bytes() - before);
  }
  if (!Is(State::kRelaying) || is_busy_ == (guard_.num_streams() > 0)) return;
  is_busy_ = !is_busy_;
  const Phase idle = is_parting_ ? Phase::kLeaving : Phase::kIdle;
  host_->set_phase(number(), is_busy_ ? Phase::kBusy : idle);
}

void GuardedConnection::Tick(absl::Time now) {
  net::post(transport_->executor(), [self = shared_from_this(), now] {
    switch (self->state_.load()) {
      case State::kHandshake:
      case State::kPreface:
        if (now - self->begun_ < self->times_.preface) return;
        self->host_->count_closed(self->peer_, CloseCause::kSilent,
                                  "no HTTP/2 preface came in time");
        return self->Close();
      case State::kWaiting:
      case State::kRelaying:
        if (self->is_writing_to_client_ && now - self->write_begun_ > self->times_.write_stall) {
          self->host_->count_closed(self->peer_, CloseCause::kTimeout,
                                    "the client does not take what is sent");
          return self->Close();
        }
        if (const auto late = self->guard_.TakeLate(now); !late.empty()) self->EndLate(late);
        self->PartForAge(now);
        if (self->is_parting_ && self->guard_.num_streams() == 0 &&
            now - self->parting_since_ > kLingerTime) {
          self->BeginToLinger();
        }
        return;
      case State::kLingering:
        if (now - self->lingering_since_ > kLingerTime) self->Close();
        return;
      case State::kClosed:
        return;
    }
  });
}

void GuardedConnection::Yield() {
  net::post(transport_->executor(), [self = shared_from_this()] {
    if (self->Is(State::kWaiting) || self->Is(State::kRelaying)) {
      if (self->guard_.num_streams() > 0)
        return self->host_->set_phase(self->number(), Phase::kBusy);
      return self->Part(/*makes_room=*/true);
    }
    if (!self->Is(State::kHandshake) && !self->Is(State::kPreface)) return;
    self->host_->count_closed(self->peer_, CloseCause::kSilent, "a newer connection needs room");
    self->Close();
  });
}

void GuardedConnection::Refuse(CloseCause cause, absl::Status why) {
  net::post(transport_->executor(), [self = shared_from_this(), cause, why = std::move(why)] {
    self->EndWith(cause, why);
  });
}

void GuardedConnection::FinishSoon() {
  net::post(transport_->executor(), [self = shared_from_this()] {
    if (self->Is(State::kHandshake) || self->Is(State::kPreface)) self->Close();
    if (!self->Is(State::kWaiting)) return;
    self->goodbye_ = GoAwayFrame(0, Http2Code::kNoError, "");
    self->BeginToLinger();
  });
}

void GuardedConnection::Abort() {
  net::post(transport_->executor(), [self = shared_from_this()] { self->Close(); });
}

// gRPC's calls of this connection end now; the client is told why.
void GuardedConnection::EndWith(CloseCause cause, const absl::Status& why, absl::string_view told) {
  if (Is(State::kLingering) || Is(State::kClosed)) return;
  host_->count_closed(peer_, cause, why.message());
  if (guard_.is_between_server_frames()) {
    goodbye_ = has_server_spoken_ ? "" : EmptySettingsFrame();
    goodbye_ +=
        GoAwayFrame(server_ && !client_first_ ? guard_.last_stream() : 0,  // gRPC knows no other
                    why.ok() ? Http2Code::kNoError : Http2Code::kEnhanceYourCalm,
                    told.empty() ? why.message() : told);
  }
  BeginToLinger();
}

// gRPC's end closes; what is being written to the client, and the goodbye, still go out.
void GuardedConnection::BeginToLinger() {
  host_->set_phase(number(), Phase::kLeaving);
  Set(State::kLingering);
  lingering_since_ = MonotonicNow();
  if (server_) {
    Error ignored;
    server_->close(ignored);
  }
  ForgetUnfinished();
  if (pause_) pause_->cancel();
  if (!is_writing_to_client_) SayGoodbye();
}

void GuardedConnection::SayGoodbye() {
  if (goodbye_.empty()) return Linger();
  is_writing_to_client_ = true;
  transport_->Write(net::buffer(goodbye_), [self = shared_from_this()](Error error, std::size_t) {
    self->is_writing_to_client_ = false;
    if (error) return self->Close();
    self->goodbye_.clear();
    self->Linger();
  });
}

void GuardedConnection::Linger() {
  transport_->ShutdownSend();
}

void GuardedConnection::Close() {
  if (Is(State::kClosed)) return;
  Set(State::kClosed);
  host_->set_phase(number(), Phase::kLeaving);
  transport_->Close();
  Error ignored;
  if (server_) server_->close(ignored);
  if (pause_) pause_->cancel();
  ForgetUnfinished();
}

void GuardedConnection::ForgetUnfinished() {
  const std::int64_t unfinished = unfinished_bytes_.exchange(0);
  if (unfinished != 0) host_->add_unfinished_bytes(-unfinished);
}

}  // namespace quire::server
