#pragma once

// A server under test as `quire bench` sees it: one request in, its tokens' times out.
//
// Place:      under bench_run; GRPC is quired, the others are servers to compare with.
// Invariants: the same LoadRequest asks every server for the same tokens: greedy, the whole answer
//             length.
// Threads:    a Target is one connection of one thread; a factory may be called from any.

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

// Fills the times of a sample while its tokens come in.
class SampleClock {
 public:
  SampleClock() : start_(Clock::now()) {}

  // A message with `count` tokens, of 1 or more, has come.
  void OnTokens(std::int64_t count);
  std::int64_t tokens() const { return sample_.output_tokens; }
  // The answer has ended; the status is the caller's to fill.
  RequestSample End();

 private:
  using Clock = std::chrono::steady_clock;

  Clock::time_point start_, first_, last_;
  RequestSample sample_;
};

// quired at the options' address, several connections for all its targets together.
TargetFactory GrpcTargets(const CommonOptions& options);

// A server with an HTTP interface: what "--peer KIND=URL" says.
struct PeerAddress {
  enum class Kind {
    kOpenAi,    // POST /v1/completions
    kLlamaCpp,  // POST /completion of llama.cpp's server
  };
  Kind kind = Kind::kOpenAi;
  std::string url;  // http://host:port, no slash at the end
};
absl::StatusOr<PeerAddress> ParsePeer(absl::string_view text);
absl::string_view PeerKindName(PeerAddress::Kind kind);

// The first id of GET /v1/models. UNAVAILABLE when the server cannot be reached or has none.
absl::StatusOr<std::string> PeerModel(const PeerAddress& peer);
// One connection each, kept open between requests. Prompts are sent as token ids.
TargetFactory HttpTargets(const PeerAddress& peer, const std::string& model,
                          double timeout_seconds);

// What a server sent in one event of its stream.
struct PeerEvent {
  std::int64_t tokens = 0;         // new ones, in this event
  std::int64_t prompt_tokens = 0;  // 0: not said
  std::int64_t total_tokens = 0;   // of the whole answer; 0: not said
  std::string error;
};
// INVALID_ARGUMENT for data that is no JSON object.
absl::StatusOr<PeerEvent> ParsePeerEvent(PeerAddress::Kind kind, absl::string_view data);
// The body of the request.
std::string PeerRequest(PeerAddress::Kind kind, const std::string& model,
                        const LoadRequest& request);

// GET, the body; UNAVAILABLE when the server cannot be reached or does not answer with 200.
absl::StatusOr<std::string> HttpGet(const std::string& url);

}  // namespace quire::client
