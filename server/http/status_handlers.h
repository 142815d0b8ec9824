#pragma once

// Handlers of GET / and /status.json: the status page and its data.
//
// The page is one document that loads nothing from other sites. It polls /status.json and /metrics
// and draws them. Its chat uses the OpenAI-compatible listener, so that long streams do not occupy
// connections that probes need.
//
// Place:      beside ops_handlers.h, on the operators' listener.
// Invariants: the page itself contains no data. /status.json needs the scope `metrics`. Without
//             authentication it is served on loopback addresses only (403 elsewhere), and the
//             header Host has to be local (http_host.h).
// Threads:    any. To read the state of the KV cache pages, a request waits up to one second for
//             the end of the current step. The answer has no `pages` if this wait fails, or if
//             another request is already waiting.
// Lifetime:   the objects in StatusSources outlive the handlers.

#include <atomic>
#include <memory>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "server/api/drain_control.h"
#include "server/api/serving_state.h"
#include "server/auth/authenticator.h"
#include "server/http/http_listener.h"
#include "server/http/status_history.h"

namespace quire::server {

struct StatusSources {
  const ServingState* state = nullptr;
  const DrainControl* drain = nullptr;     // null: drains have no deadline
  const StatusHistory* history = nullptr;  // null: no history
  const Authenticator* authenticator = nullptr;
  absl::string_view version;
  absl::Time start_time;
  bool is_open = false;        // on loopback or with tokens; else anonymous callers get 403
  bool checks_host = false;    // the header Host has to be local
  std::string openai_address;  // host:port of the OpenAI-compatible listener; empty: off
  bool openai_has_tls = false;
  // True while a request waits for the snapshot of the KV cache pages.
  std::shared_ptr<std::atomic<bool>> is_snapshot_pending =
      std::make_shared<std::atomic<bool>>(false);
};

// Adds the handlers of both paths to `handlers`.
void AddStatusHandlers(const StatusSources& sources, HttpHandlers* handlers);

// Returns the body of /status.json. Its field `state` is a LifeStateName, or "pre_drain" while a
// drain has begun but requests are still admitted. `drain_seconds_left` is null if the drain has no
// deadline. The arrays of `history` have one element per sample, oldest first. The last element is
// the current state. Each element of `runs` is [value, length], a run of pages with the same value
// of engine::PageSnapshot.
std::string StatusJson(const StatusSources& sources, const ServedModel* model, absl::Time now);

}  // namespace quire::server
