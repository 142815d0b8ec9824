#pragma once

// The client side of `quire bench`: sends requests to a server under test and measures when the
// tokens of the answers arrive.
//
// Place:      below bench_run. GrpcTargets connects to quired, HttpTargets to the server that
//             quired is compared with.
// Invariants: every server gets the same requests, with greedy sampling. The answer length is
//             fixed, unless a schema determines the end of the answer.
// Threads:    one Target per thread. A factory can be called from any thread.

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "tools/quire/bench_load.h"
#include "tools/quire/bench_report.h"

namespace quire::client {

struct CommonOptions;

class Target {
 public:
  virtual ~Target() = default;
  virtual RequestSample Send(const LoadRequest& request) = 0;
};
using TargetFactory = std::function<std::unique_ptr<Target>()>;

// Records the times of a sample while its tokens arrive.
class SampleClock {
 public:
  SampleClock() : start_(Clock::now()) {}

  // Call for every message with `count` >= 1 tokens.
  void OnTokens(std::int64_t count);
  std::int64_t tokens() const { return sample_.output_tokens; }
  // Returns the sample at the end of the answer. The caller sets its status.
  RequestSample End();

 private:
  using Clock = std::chrono::steady_clock;

  Clock::time_point start_, first_, last_;
  RequestSample sample_;
};

// Returns a factory of targets for quired at the options' address. All targets share a fixed number
// of connections.
TargetFactory GrpcTargets(const CommonOptions& options);

// The address of an HTTP server, as given by "--peer KIND=URL".
struct PeerAddress {
  enum class Kind {
    kOpenAi,    // POST /v1/completions
    kLlamaCpp,  // POST /completion of llama.cpp's server
  };
  Kind kind = Kind::kOpenAi;
  std::string url;  // http://host:port, without a final slash
};
absl::StatusOr<PeerAddress> ParsePeer(absl::string_view text);
absl::string_view PeerKindName(PeerAddress::Kind kind);

// Returns the first id of GET /v1/models. Returns UNAVAILABLE if the server or a model is missing.
absl::StatusOr<std::string> PeerModel(const PeerAddress& peer);
// Returns a factory of targets that each keep one connection open. Prompts are sent as token ids.
TargetFactory HttpTargets(const PeerAddress& peer, const std::string& model,
                          double timeout_seconds);

// The contents of one event of a stream.
struct PeerEvent {
  std::int64_t tokens = 0;         // new tokens in this event
  std::int64_t prompt_tokens = 0;  // 0: not reported
  std::int64_t output_tokens = 0;  // tokens of the whole answer; 0: not reported
  std::string error;
};
// Returns INVALID_ARGUMENT if the data is not a JSON object.
absl::StatusOr<PeerEvent> ParsePeerEvent(PeerAddress::Kind kind, absl::string_view data);
// Returns the body of the HTTP request for `request`.
std::string PeerRequest(PeerAddress::Kind kind, const std::string& model,
                        const LoadRequest& request);

// Sends a GET and returns the body. Returns UNAVAILABLE if there is no answer with status 200.
absl::StatusOr<std::string> HttpGet(const std::string& url);

}  // namespace quire::client
