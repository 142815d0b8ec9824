#pragma once

// One generation from acceptance to its last message, independent of the transport. It serves one
// generation call of any API, or one item of a batch.
//
//   GenerationService -> Generation::Start -> Engine::Accept -> TokenStream
//   reactor: SetReadyCallback; while (TakeResponse(&message)) ...; if finished(): Close()
//
// Place:      between the transports and the engine; owns the read side of the stream, the access
//             log line and the counters of one request.
// Invariants: each request has one access log line. Start or Refuse writes the line of a refused
//             request, and Close writes the line of any other request.
// Threads:    one thread at a time calls TakeResponse, finished, usage and Close. Cancel and Revoke
//             are thread-safe.
// Lifetime:   the state's model outlives it. The destructor cancels the request unless Close was
//             called.

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

// Dependencies of the handlers. All are owned by the daemon.
struct HandlerContext {
  ServingState* state = nullptr;
  ServerProbe* probe = nullptr;
  const Clock* clock = nullptr;
  const Authenticator* authenticator = nullptr;  // never null in handlers
  const LiveConfig* config = nullptr;            // never null in handlers
  const PeerTable* peers = nullptr;              // never null in gRPC handlers
  TraceExporter* traces = nullptr;               // null: no traces
};

// Counts a finished request for its tenant, and writes its access log line and its trace.
void EndRecord(const HandlerContext& context, const AccessRecord& record);

class Generation {
 public:
  // Translates and validates the message and passes the request to the engine. Counts and logs a
  // refusal.
  static absl::StatusOr<std::unique_ptr<Generation>> Start(const HandlerContext& context,
                                                           absl::string_view method,
                                                           const std::string& traceparent,
                                                           const v1::GenerateRequest& message,
                                                           const CallInfo& call);

  // Counts and logs a request that could not be converted to v1::GenerateRequest. Returns `why`,
  // sanitized (status_mapping.h). `message` contains the fields that could be read.
  static absl::Status Refuse(const HandlerContext& context, absl::string_view method,
                             const std::string& traceparent, const v1::GenerateRequest& message,
                             const CallInfo& call, const absl::Status& why);

  ~Generation();
  Generation(const Generation&) = delete;
  Generation& operator=(const Generation&) = delete;

  const std::string& id() const { return record_.request_id; }

  // See TokenStream::SetReadyCallback.
  void SetReadyCallback(std::function<void()> callback);
  // See TokenStream::SetAbandonedCallback. Used by transports that have no timeout for writes that
  // the peer does not read. Close removes the callback.
  void SetAbandonedCallback(std::function<void()> callback);
  // Takes the next message. Returns false if there is none yet.
  bool TakeResponse(v1::GenerateResponse* message);
  // Returns true if the request has ended and every message was taken. Then usage() is final.
  bool finished() const { return stream_->finished(); }
  engine::Usage usage() const { return stream_->usage(); }

  // Called if the client is gone or the deadline of the call has passed.
  void Cancel();
  // Ends the request with TOKEN_INVALID, because its token was revoked.
  void Revoke();

  // Writes the access log line and returns the final status. REQUIRES: finished(), and Close was
  // not called before.
  absl::Status Close();

 private:
  Generation(const HandlerContext& context, AccessRecord record, absl::Time accept_time);
  absl::Status Accept(const v1::GenerateRequest& message, const CallInfo& call, bool* translated);

  const HandlerContext context_;
  const absl::Time accept_time_;
  AccessRecord record_;
  const ServedModel* model_ = nullptr;           // constant after Start, like the next two
  std::shared_ptr<engine::TokenStream> stream_;  // not null after Start
  absl::Time deadline_;
  bool is_closed_ = false;
};

}  // namespace quire::server
