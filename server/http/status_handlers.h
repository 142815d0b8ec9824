#pragma once

// GET / and /status.json: the status page and what it shows.
//
// The page is one file without anything from elsewhere; it asks for /status.json and /metrics again
// and again and draws them. Its playground speaks to the OpenAI-compatible listener, so that an
// answer that streams for minutes holds nothing that probes need.
//
// Place:      beside ops_handlers.h, on the operators' listener.
// Invariants: the page itself tells nothing. /status.json needs the scope `metrics`; without any
//             authentication it is answered on loopback addresses only, 403 elsewhere.
//             Where loopback is what guards it, Host has to name this machine (http_host.h).
// Threads:    any. One request at a time waits for the end of the step that runs, a second at most;
//             the others, and it after that second, are answered without `pages`.
// Lifetime:   what StatusSources points to outlives the handlers.

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "server/api/serving_state.h"
#include "server/auth/authenticator.h"
#include "server/http/http_listener.h"

namespace quire::server {

struct StatusSources {
  const ServingState* state = nullptr;
  const Authenticator* authenticator = nullptr;
  absl::string_view version;
  absl::Time start_time;
  bool is_open = false;        // served without authentication: the listener is on loopback
  bool checks_host = false;    // loopback is all that guards it
  std::string openai_address;  // host:port of the OpenAI-compatible listener; empty: off
  bool openai_has_tls = false;
  // A request waits for the snapshot of the pages.
  std::shared_ptr<std::atomic<bool>> is_asking = std::make_shared<std::atomic<bool>>(false);
};

// Adds both to `handlers`.
void AddStatusHandlers(const StatusSources& sources, HttpHandlers* handlers);

// Every run of equal pages as [value, length]; values are those of engine::PageSnapshot.
std::string StatusJson(const StatusSources& sources, const ServedModel* model, absl::Time now);

}  // namespace quire::server
