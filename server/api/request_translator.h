#pragma once

// quire.v1.GenerateRequest -> engine::Request: every field checked, every default resolved, the bad
// field named by its wire path.
//
// Place:      between the transports and the engine; the only code that reads request messages.
// Invariants: a request that comes out satisfies every range of docs/reference/api.md that does not
//             need the tokens of its prompt. Fields of features that this version lacks are refused
//             when set (UNIMPLEMENTED / FEATURE_UNSUPPORTED with metadata `field`), never ignored.
// Threads:    any. Options are replaced as a whole; a request is read with one version of them.
// Lifetime:   values.

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/published.h"
#include "engine/request/request.h"
#include "engine/request/sampling_params.h"

namespace google::protobuf {
class Duration;
}
namespace quire::text {
class ChatTemplates;
struct ToolFormat;
}  // namespace quire::text
namespace quire::v1 {
class Constraint;
class GenerateRequest;
}  // namespace quire::v1

namespace quire::server {

// What the call itself says, beside the message.
struct CallInfo {
  std::string principal;  // "" without authentication
  std::string tenant = "default";
  std::string metadata_request_id;   // x-request-id
  bool request_id_required = false;  // items of a batch
  absl::Time accept_time;
  absl::Time grpc_deadline = absl::InfiniteFuture();
};

// Of the model and the configuration; replaced when hot keys change.
struct TranslatorOptions {
  std::string model_id;
  std::vector<std::string> aliases;
  engine::SamplingParams sampling_defaults;
  engine::ParamLimits limits;
  std::int32_t default_max_tokens = 0;
  std::int32_t stream_interval_tokens = 1;
  absl::Duration queue_timeout = absl::InfiniteDuration();
  absl::Duration max_request_duration = absl::InfiniteDuration();
  std::shared_ptr<const text::ChatTemplates> chat;  // null only where no chat is read
  const text::ToolFormat* tool_format = nullptr;    // null: answers are not taken apart
  bool has_reasoning = false;                       // which the chat template speaks of
};

class RequestTranslator {
 public:
  explicit RequestTranslator(TranslatorOptions options)
      : options_(std::make_unique<Published<TranslatorOptions>>(std::move(options))) {}

  absl::StatusOr<engine::Request> ToRequest(const v1::GenerateRequest& message,
                                            const CallInfo& call) const;

  // OK for "", the model's id and its aliases; else NOT_FOUND / MODEL_NOT_FOUND.
  absl::Status CheckModel(absl::string_view name) const;

  std::shared_ptr<const TranslatorOptions> options() const { return options_->Get(); }
  // For requests from now on. The model's id stays.
  void SetOptions(std::shared_ptr<const TranslatorOptions> options) {
    options_->Set(std::move(options));
  }

 private:
  std::unique_ptr<Published<TranslatorOptions>> options_;
};

// INVALID_ARGUMENT / BAD_PARAMETER unless `id` is 1..128 characters of [A-Za-z0-9_.:-].
absl::Status CheckRequestId(absl::string_view id, absl::string_view field);
// A random UUID, version 4.
std::string NewRequestId();
// `id` of the header x-request-id if it is a request id with `suffix` behind it, else a new one.
// Gateways set the header for every call, so an id that cannot be used is not the caller's mistake.
std::string UsableRequestId(absl::string_view id, absl::string_view suffix = "");
// The longest number behind the id of an evaluation: 2048 pairs of two items each.
inline constexpr absl::string_view kLongestItemSuffix = "-4095";

// Whether the constraint may have JSON in it, whose white space may be chosen then.
bool HasJson(const v1::Constraint& constraint);

// The value of a Duration field; BAD_PARAMETER when it is malformed, negative, or zero while zero
// is not allowed.
absl::StatusOr<absl::Duration> ToDuration(const google::protobuf::Duration& duration,
                                          absl::string_view field, bool zero_allowed);

}  // namespace quire::server
