// Fuzzes the bytes that a peer sends on one connection of an HTTP listener. The first byte selects
// the size of the pieces.

#include <boost/asio/error.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <cstring>
#include <memory>
#include <utility>

#include "absl/strings/match.h"
#include "server/auth/authenticator.h"
#include "server/http/http_host.h"
#include "server/http/http_session.h"
#include "tests/fuzz/fuzz_target.h"

namespace quire::server {
namespace {

// The peer. It sends its pieces, then the end of the stream, and reads everything it receives.
class Peer {
 public:
  Peer(absl::string_view bytes, std::size_t piece) : rest_(bytes), piece_(piece) {}

  // Completes one operation of the session. Returns false if none is pending. A peer of large
  // pieces sends before it reads.
  bool Move() {
    if (write_ != nullptr && (read_ == nullptr || piece_ < 128 || rest_.empty())) {
      std::exchange(write_, nullptr)({}, written_);
      return true;
    }
    if (read_ == nullptr) return false;
    const std::size_t size = std::min({piece_, rest_.size(), buffer_.size()});
    std::memcpy(buffer_.data(), rest_.data(), size);
    rest_.remove_prefix(size);
    const Transport::Error end = boost::asio::error::eof;
    std::exchange(read_, nullptr)(size == 0 ? end : Transport::Error(), size);
    return true;
  }

  void Read(boost::asio::mutable_buffer buffer, Transport::Done done) {
    QUIRE_CHECK(read_ == nullptr);
    buffer_ = buffer;
    read_ = std::move(done);
  }
  void Write(boost::asio::const_buffer buffer, Transport::Done done) {
    QUIRE_CHECK(write_ == nullptr);
    fuzz::TouchAll({static_cast<const std::byte*>(buffer.data()), buffer.size()});
    written_ = buffer.size();
    write_ = std::move(done);
  }
  // Takes both operations, which end with an error.
  std::pair<Transport::Done, Transport::Done> TakeOperations() {
    return {std::exchange(read_, nullptr), std::exchange(write_, nullptr)};
  }

 private:
  absl::string_view rest_;
  const std::size_t piece_;
  Transport::Done read_, write_;
  boost::asio::mutable_buffer buffer_;
  std::size_t written_ = 0;
};

class MemoryTransport final : public Transport {
 public:
  MemoryTransport(boost::asio::io_context* io, Peer* peer) : io_(io), peer_(peer) {}

  boost::asio::any_io_executor executor() override { return io_->get_executor(); }
  void Handshake(std::function<void(Error)> done) override { done(Error()); }
  void ReadSome(boost::asio::mutable_buffer buffer, Done done) override {
    peer_->Read(buffer, std::move(done));
  }
  void Write(boost::asio::const_buffer buffer, Done done) override {
    peer_->Write(buffer, std::move(done));
  }
  std::string CertificateName() override { return ""; }
  void ShutdownSend() override {}
  void Close() override {
    auto [read, write] = peer_->TakeOperations();
    for (Done* done : {&read, &write}) {
      if (*done == nullptr) continue;
      boost::asio::post(
          *io_, [done = std::move(*done)] { done(boost::asio::error::operation_aborted, 0); });
    }
  }

 private:
  boost::asio::io_context* const io_;
  Peer* const peer_;
};

class Host final : public HttpSessionHost {
 public:
  Host() {
    options_.max_head_bytes = 2048;
    options_.max_body_bytes = [] { return std::int64_t{4096}; };
  }

  const HttpServerOptions& options() const override { return options_; }
  bool closing() const override { return false; }
  void SetPhase(std::uint64_t, Phase) override {}
  void Remove(std::uint64_t) override { has_left_ = true; }
  bool has_left() const { return has_left_; }

  // Handles requests like the listeners: client, page, and an answer at once or in pieces.
  void Handle(const std::shared_ptr<HttpExchange>& exchange) override {
    const HttpRequest& request = exchange->request();
    QUIRE_CHECK(request.body.size() <= 4096);
    const bool is_local = IsHostLocal(request);
    const bool is_own = IsOwnPage(request.Header("origin"), request, 80);
    const absl::string_view token = BearerToken(request.Header("authorization"));
    if (absl::StartsWith(request.path, "/stream")) {
      exchange->BeginStream({.body = ""});
      return exchange->Write("piece\n", [exchange] { exchange->EndStream(true); });
    }
    exchange->Answer({.status = is_local || is_own ? 200 : 403,
                      .body = absl::StrCat(token, exchange->TakeBody())});
  }

 private:
  HttpServerOptions options_;
  bool has_left_ = false;
};

void Serve(std::size_t piece, absl::string_view bytes) {
  boost::asio::io_context io;
  Peer peer(bytes, piece);
  Host host;
  std::make_shared<HttpSession>(&host, /*number=*/0, std::make_unique<MemoryTransport>(&io, &peer),
                                /*over_limit_message=*/"")
      ->Begin();
  do {
    io.restart();
    io.poll();
  } while (peer.Move());
  io.restart();
  io.poll();
  // The peer has ended and reads everything, so only a timer may keep the connection open.
  QUIRE_CHECK(host.has_left());
}

}  // namespace
}  // namespace quire::server

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  quire::server::Serve(std::size_t{1} + data[0], quire::fuzz::AsText(data, size).substr(1));
  return 0;
}
