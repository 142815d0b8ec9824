#pragma once

// One generation from acceptance to its last message, without any transport: a Generate call or an
// item of a batch.
//
//   GenerationService -> Generation::Start -> Engine::Accept -> TokenStream
//   reactor: SetReadyCallback; while (TakeResponse(&message)) ...; if finished(): Close()
//
// Place:      between the reactors and the engine; owns the reader's end of the stream, the access
//             log line and the counters of one request.
// Invariants: one access log line per request, refused ones included.
// Threads:    TakeResponse, finished, usage and Close: one thread at a time. Cancel, Revoke: any.
// Lifetime:   the state's model outlives it. Destroying one before Close cancels its request.

#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/clock.h"
#include "engine/output/token_stream.h"
#include "server/api/access_log.h"
#include "server/api/request_translator.h"
#include "server/api/server_probe.h"
#include "server/api/serving_state.h"

namespace quire::v1 {
class GenerateRequest;
class GenerateResponse;
}  // namespace quire::v1

namespace quire::server {

class Authenticator;
class LiveConfig;
class PeerTable;

// What handlers share. Plain pointers: the daemon owns all of it.
struct HandlerContext {
  ServingState* state = nullptr;
  ServerProbe* probe = nullptr;
  const Clock* clock = nullptr;
  const Authenticator* authenticator = nullptr;  // never null where handlers run
  const LiveConfig* config = nullptr;            // nor this
  const PeerTable* peers = nullptr;              // nor this, in handlers of gRPC
};

class Generation {
 public:
  // Translates, checks and hands the request to the engine. A refusal is counted and logged here.
  static absl::StatusOr<std::unique_ptr<Generation>> Start(const HandlerContext& context,
                                                           absl::string_view method,
                                                           const std::string& traceparent,
                                                           const v1::GenerateRequest& message,
                                                           const CallInfo& call);

  // Counts and logs a request whose message did not become a v1::GenerateRequest, and returns the
  // answer. `message` has what was read of it.
  static absl::Status Refuse(const HandlerContext& context, absl::string_view method,
                             const std::string& traceparent, const v1::GenerateRequest& message,
                             const CallInfo& call, const absl::Status& why);

  ~Generation();
  Generation(const Generation&) = delete;
  Generation& operator=(const Generation&) = delete;

  const std::string& id() const { return record_.request_id; }

  // See TokenStream::SetReadyCallback.
  void SetReadyCallback(std::function<void()> callback);
  // See TokenStream::SetAbandonedCallback; for transports that know no end of their own to a write
  // that the peer does not read. Close takes it away.
  void SetAbandonedCallback(std::function<void()> callback);
  // Fills the next message; false when there is none now.
  bool TakeResponse(v1::GenerateResponse* message);
  // True when every message was taken and the request is over; then usage() is final.
  bool finished() const { return stream_->finished(); }
  engine::Usage usage() const { return stream_->usage(); }

  // The client is gone, or the deadline of the call has passed.
  void Cancel();
  // Its caller has lost the right to it: ends with TOKEN_INVALID.
  void Revoke();

  // Writes the access log line and returns how the request ended. REQUIRES: finished(), first call.
  absl::Status Close();

 private:
  Generation(const HandlerContext& context, AccessRecord record, absl::Time accept_time);
  absl::Status Accept(const v1::GenerateRequest& message, const CallInfo& call, bool* translated);

  const HandlerContext context_;
  const absl::Time accept_time_;
  AccessRecord record_;
  const ServedModel* model_ = nullptr;           // constant after Start, as the next two
  std::shared_ptr<engine::TokenStream> stream_;  // never null then
  absl::Time deadline_;
  bool is_closed_ = false;
};

}  // namespace quire::server
