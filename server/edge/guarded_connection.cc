#include "server/edge/guarded_connection.h"

#include <boost/asio/post.hpp>
#include <boost/asio/write.hpp>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/logging.h"

namespace quire::server {
namespace {

namespace net = boost::asio;

// Time for a client to read the last bytes and close. If the socket were closed at once while the
// client still sends, the kernel would discard the bytes that the client has not read.
constexpr absl::Duration kLingerTime = absl::Seconds(1);

}  // namespace

absl::string_view CloseCauseName(CloseCause cause) {
  constexpr absl::string_view kNames[] = {"too_many", "silent", "idle",    "not_http2",
                                          "frames",   "memory", "timeout", "no_resource"};
  static_assert(std::size(kNames) == static_cast<std::size_t>(CloseCause::kNoResource) + 1);
  return kNames[static_cast<std::size_t>(cause)];
}

net::mutable_buffer GuardedConnection::Buffer::SpaceForRead() {
  if (bytes_.empty()) bytes_.resize(kMinBytes);
  return net::buffer(bytes_) + num_kept_;
}

std::span<const std::byte> GuardedConnection::Buffer::LastRead(std::size_t size) const {
  return std::span(bytes_).subspan(num_kept_, size);
}

net::const_buffer GuardedConnection::Buffer::TakeAll(std::size_t size) {
  return net::buffer(bytes_.data(), std::exchange(num_kept_, 0) + size);
}

void GuardedConnection::Buffer::AdaptSize(std::size_t size) {
  if (size == bytes_.size() && size < kMaxBytes) {
    bytes_ = std::vector<std::byte>(2 * size);
  } else if (size < bytes_.size() / 4 && bytes_.size() > kMinBytes) {
    bytes_ = std::vector<std::byte>(bytes_.size() / 2);
  }
}

GuardedConnection::GuardedConnection(const GuardedConnectionHost* host, std::uint64_t number,
                                     std::unique_ptr<Transport> transport, Peer peer,
                                     const FrameLimits& limits, const ConnectionTimes& times)
    : host_(host),
      number_(number),
      transport_(std::move(transport)),
      peer_(std::move(peer)),
      times_(times),
      state_since_(MonotonicNow()),
      guard_(limits) {}

// Destroys the sockets before remove(), after which the host may be destroyed.
GuardedConnection::~GuardedConnection() {
  SetUnfinishedBytes(0);
  grpc_socket_.reset();
  transport_.reset();
  host_->remove(number_, name_);
}

void GuardedConnection::Begin() {
  net::post(transport_->executor(), [self = shared_from_this()] {
    if (self->state_ != State::kOpening) return;
    self->transport_->Handshake([self](Error error) {
      if (self->state_ != State::kOpening) return;
      if (error) return self->Close();
      self->peer_.certificate_name = self->transport_->CertificateName();
      self->ReadClient();
    });
  });
}

void GuardedConnection::Reject(CloseCause cause, const absl::Status& why) {
  net::post(transport_->executor(), [self = shared_from_this(), cause, why] {
    self->CloseWithGoAway(cause, why);
    self->ReadClient();
  });
}

void GuardedConnection::ReadClient() {
  if (state_ == State::kClosed) return;
  transport_->ReadSome(from_client_.SpaceForRead(),
                       [self = shared_from_this()](Error error, std::size_t size) {
                         self->OnClientRead(error, size);
                       });
}

void GuardedConnection::OnClientRead(Error error, std::size_t size) {
  if (state_ == State::kClosed) return;
  if (error) return OnClientEnd();
  if (state_ == State::kLingering) {  // the bytes are discarded
    if (!held_goaway_.empty() &&
        (!guard_.OnClientBytes(from_client_.LastRead(size), MonotonicNow()).ok() ||
         guard_.last_stream() > 0)) {
      SendHeldGoAway();
    }
    return ReadClient();
  }
  const absl::Status counted = guard_.OnClientBytes(from_client_.LastRead(size), MonotonicNow());
  UpdateCounts();
  if (!counted.ok()) {
    CloseWithGoAway(absl::IsInvalidArgument(counted) ? CloseCause::kNotHttp2 : CloseCause::kFrames,
                    counted);
    return ReadClient();
  }
  if (!guard_.has_preface()) {
    from_client_.Keep(size);
    return ReadClient();
  }
  if (state_ == State::kOpening && !ConnectToGrpc()) return ReadClient();
  WriteGrpc(from_client_.TakeAll(size));
}

// Forwards the client's half-close. gRPC closes its end after it has read all bytes before the
// half-close.
void GuardedConnection::OnClientEnd() {
  if (state_ == State::kLingering) {
    // After the last pending write nothing refers to the connection, and its destructor closes it.
    if (!held_goaway_.empty()) SendHeldGoAway();
    return;
  }
  if (state_ != State::kRelaying) return Close();
  has_client_ended_ = true;
  Error ignored;  // gRPC may have closed already
  grpc_socket_->shutdown(net::local::stream_protocol::socket::shutdown_send, ignored);
}

bool GuardedConnection::ConnectToGrpc() {
  auto connected = host_->connect(number_, transport_->executor(), peer_);
  if (absl::IsUnavailable(connected.status())) {
    Close();
    return false;
  }
  if (!connected.ok()) {
    CloseWithGoAway(CloseCause::kNoResource, connected.status());
    return false;
  }
  grpc_socket_.emplace(std::move(connected->socket));
  Error ignored;  // on failure, ResetLateStreams may block until gRPC reads
  grpc_socket_->non_blocking(true, ignored);
  name_ = std::move(connected->name);
  state_ = State::kRelaying;
  ContinueSendingToClient();
  return true;
}

void GuardedConnection::WriteGrpc(net::const_buffer bytes) {
  is_writing_to_grpc_ = true;
  net::async_write(
      *grpc_socket_, bytes, [self = shared_from_this(), size = bytes.size()](Error, std::size_t) {
        // If the write fails, gRPC has closed its end, and the read from gRPC ends the connection.
        // Reading from the client continues. If the socket were closed before the client's bytes
        // are read, the kernel would discard bytes that the client has not read yet.
        self->is_writing_to_grpc_ = false;
        self->from_client_.AdaptSize(size);
        self->ReadClient();
      });
}

// Starts the next operation in the direction to the client. REQUIRES: none is pending.
void GuardedConnection::ContinueSendingToClient() {
  if (state_ == State::kClosed) return;
  if (!own_frames_.empty() && guard_.is_between_server_frames()) {
    if (state_ == State::kLingering) CloseGrpc();
    own_frames_being_written_ = std::exchange(own_frames_, {});
    return WriteClient(net::buffer(own_frames_being_written_));
  }
  const bool is_grpc_open = grpc_socket_ && grpc_socket_->is_open();
  if (state_ == State::kLingering && (own_frames_.empty() || !is_grpc_open)) {
    if (held_goaway_.empty()) transport_->ShutdownSend();
    return;
  }
  // While our own frames wait, reads end where the frame of gRPC ends.
  net::mutable_buffer space = from_grpc_.SpaceForRead();
  if (!own_frames_.empty()) space = net::buffer(space, guard_.missing_server_bytes());
  grpc_socket_->async_read_some(space, [self = shared_from_this()](Error error, std::size_t size) {
    self->OnGrpcRead(error, size);
  });
}

void GuardedConnection::OnGrpcRead(Error error, std::size_t size) {
  if (!grpc_socket_->is_open() || error == net::error::operation_aborted)
    return ContinueSendingToClient();
  if (error) {
    if (state_ == State::kLingering) {
      CloseGrpc();  // gRPC's frame stays incomplete, so our own frames are not sent
      return ContinueSendingToClient();
    }
    if (has_client_ended_) return Close();
    host_->set_phase(number_, Phase::kIdle);  // the connection still counts against the limits
    Linger();
    return ContinueSendingToClient();
  }
  has_grpc_sent_ = true;
  guard_.OnServerBytes(from_grpc_.LastRead(size));
  if (state_ == State::kRelaying) UpdateCounts();
  WriteClient(from_grpc_.TakeAll(size));
}

void GuardedConnection::WriteClient(net::const_buffer bytes) {
  write_begun_ = MonotonicNow();
  transport_->Write(bytes,
                    [self = shared_from_this(), size = bytes.size()](Error error, std::size_t) {
                      self->write_begun_ = absl::InfiniteFuture();
                      if (self->state_ == State::kClosed) return;
                      if (error) return self->Close();
                      self->from_grpc_.AdaptSize(size);
                      self->ContinueSendingToClient();
                    });
}

void GuardedConnection::Tick(absl::Time now) {
  net::post(transport_->executor(), [self = shared_from_this(), now] {
    if (self->state_ == State::kOpening && now - self->state_since_ >= self->times_.preface) {
      self->host_->count_closed(
          self->peer_, CloseCause::kSilent,
          absl::StrCat("no HTTP/2 preface within ", absl::FormatDuration(self->times_.preface)));
      return self->Close();
    }
    if (self->state_ == State::kLingering && now - self->state_since_ > kLingerTime) {
      if (self->held_goaway_.empty()) return self->Close();
      return self->SendHeldGoAway();
    }
    if (self->state_ != State::kRelaying) return;
    if (now - self->write_begun_ > self->times_.write_stall) {
      self->host_->count_closed(self->peer_, CloseCause::kTimeout,
                                absl::StrCat("the client has not read the pending bytes within ",
                                             absl::FormatDuration(self->times_.write_stall)));
      return self->Close();
    }
    if (const auto late = self->guard_.TakeLateStreams(now); !late.empty())
      self->ResetLateStreams(late);
  });
}

// Resets the calls that exceed message_timeout, towards both the client and gRPC. Other calls of
// the connection continue, since they may belong to other clients behind a proxy. A reset cannot be
// sent to gRPC in the middle of a client's frame, or while gRPC does not read. In these cases the
// whole connection is closed.
void GuardedConnection::ResetLateStreams(const std::vector<std::uint32_t>& late) {
  UpdateCounts();
  const absl::Status why = absl::DeadlineExceededError(
      absl::StrCat("a message is not complete ",
                   absl::FormatDuration(guard_.limits().message_timeout), " after its first byte"));
  std::string resets;
  for (const std::uint32_t stream : late) {
    resets += RstStreamFrame(stream, Http2Code::kEnhanceYourCalm);
  }
  Error error;
  const bool are_reset = !is_writing_to_grpc_ && guard_.is_between_client_frames() &&
                         grpc_socket_->write_some(net::buffer(resets), error) == resets.size();
  if (!are_reset) return CloseWithGoAway(CloseCause::kTimeout, why);
  log::Info("grpc", "calls ended",
            {{"peer", peer_.address}, {"calls", late.size()}, {"why", why.message()}});
  own_frames_ += resets;
  // Cancels the pending read, so that the resets are written next. No write to gRPC, which this
  // would cancel too, is pending here.
  grpc_socket_->cancel(error);
}

void GuardedConnection::Evict() {
  net::post(transport_->executor(), [self = shared_from_this()] {
    if (self->state_ == State::kOpening) {
      self->host_->count_closed(self->peer_, CloseCause::kSilent, "evicted for a newer connection");
      return self->Close();
    }
    if (self->state_ == State::kLingering) {
      self->host_->count_closed(self->peer_, CloseCause::kIdle, "evicted for a newer connection");
      return self->Close();
    }
    if (self->state_ != State::kRelaying) return;
    if (self->guard_.num_streams() > 0) {
      return self->host_->set_phase(self->number_, Phase::kBusy);
    }
    self->CloseWithGoAway(CloseCause::kIdle, absl::OkStatus());
  });
}

void GuardedConnection::CloseWithReason(CloseCause cause, absl::Status why) {
  net::post(transport_->executor(), [self = shared_from_this(), cause, why = std::move(why)] {
    self->CloseWithGoAway(cause, why);
  });
}

void GuardedConnection::CloseIfOpening() {
  net::post(transport_->executor(), [self = shared_from_this()] {
    if (self->state_ == State::kOpening || !self->held_goaway_.empty()) self->Close();
  });
}

void GuardedConnection::Abort() {
  net::post(transport_->executor(), [self = shared_from_this()] { self->Close(); });
}

// The GOAWAY frame names the last call that gRPC may have received, so the client can retry later
// calls. A rejected client gets the frame when it begins its first call or closes its direction, or
// after kLingerTime. If a client with gRPC's C++ core (1.85) reads the frame directly after the
// first SETTINGS, it can retry its call on the ended connection. It does so in a busy loop until
// the call's deadline.
void GuardedConnection::CloseWithGoAway(CloseCause cause, const absl::Status& why) {
  if (state_ == State::kLingering || state_ == State::kClosed) return;
  host_->count_closed(peer_, cause, why.message());
  if (!host_->try_linger(number_)) return Close();
  host_->set_phase(number_, Phase::kClosing);
  own_frames_ = has_grpc_sent_ ? "" : EmptySettingsFrame();
  const std::string goaway =
      GoAwayFrame(grpc_socket_ ? guard_.last_stream() : 0,
                  why.ok() ? Http2Code::kNoError : Http2Code::kEnhanceYourCalm, why.message());
  const bool is_rejected = cause == CloseCause::kTooMany || cause == CloseCause::kNoResource;
  if (is_rejected && guard_.last_stream() == 0) {
    held_goaway_ = goaway;
  } else {
    own_frames_ += goaway;
  }
  Linger();
  if (!grpc_socket_) ContinueSendingToClient();  // no pending operation will call it
}

void GuardedConnection::SendHeldGoAway() {
  state_since_ = MonotonicNow();
  own_frames_ += std::exchange(held_goaway_, {});
  // A pending write calls ContinueSendingToClient when it has completed.
  if (write_begun_ == absl::InfiniteFuture()) ContinueSendingToClient();
}

// Ends the connection to gRPC, which then ends its calls. The pending write to the client and our
// own frames are still sent. If gRPC's last frame is incomplete, the socket stays open until the
// frame is complete, because our own frames must not be sent inside it.
void GuardedConnection::Linger() {
  state_ = State::kLingering;
  state_since_ = MonotonicNow();
  SetUnfinishedBytes(0);
  if (!grpc_socket_) return;
  if (own_frames_.empty() || guard_.is_between_server_frames()) return CloseGrpc();
  Error ignored;
  grpc_socket_->shutdown(net::local::stream_protocol::socket::shutdown_send, ignored);
}

void GuardedConnection::CloseGrpc() {
  Error ignored;
  if (grpc_socket_) grpc_socket_->close(ignored);
}

void GuardedConnection::Close() {
  if (state_ == State::kClosed) return;
  host_->set_phase(number_, Phase::kClosing);
  state_ = State::kClosed;
  transport_->Close();
  CloseGrpc();
  SetUnfinishedBytes(0);
}

// Publishes the guard's counts to other threads.
void GuardedConnection::UpdateCounts() {
  SetUnfinishedBytes(guard_.unfinished_bytes());
  const bool is_busy = guard_.num_streams() > 0;
  if (is_busy == is_busy_) return;
  is_busy_ = is_busy;
  host_->set_phase(number_, is_busy ? Phase::kBusy : Phase::kIdle);
}

void GuardedConnection::SetUnfinishedBytes(std::int64_t bytes) {
  const std::int64_t before = unfinished_bytes_.exchange(bytes);
  if (bytes != before) host_->add_unfinished_bytes(bytes - before);
}

}  // namespace quire::server
