#pragma once

// Converts quire.v1.GenerateRequest to engine::Request: checks every field and resolves every
// default. Errors name the field by its wire path.
//
// Place:      between the transports and the engine; the only code that reads v1::GenerateRequest.
// Invariants: the request satisfies every value range in docs/reference/api.md that does not depend
//             on the prompt's tokens. Unsupported fields are refused if set (UNIMPLEMENTED /
//             FEATURE_UNSUPPORTED with metadata `field`), never ignored.
// Threads:    any. Options are replaced as a whole; each request uses one version of them.

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

// Properties of a call outside its message.
struct CallInfo {
  std::string principal;  // "" without authentication
  std::string tenant = "default";
  std::string metadata_request_id;   // x-request-id
  bool request_id_required = false;  // true for items of a batch
  absl::Time accept_time;
  absl::Time grpc_deadline = absl::InfiniteFuture();
};

// Options from the model and the configuration; replaced when a reload changes configuration keys.
struct TranslatorOptions {
  std::string model_id;
  std::vector<std::string> aliases;
  engine::SamplingParams sampling_defaults;
  engine::ParamLimits limits;
  std::int32_t default_max_tokens = 0;
  std::int32_t stream_interval_tokens = 1;
  absl::Duration queue_timeout = absl::InfiniteDuration();
  absl::Duration max_request_duration = absl::InfiniteDuration();
  std::shared_ptr<const text::ChatTemplates> chat;  // null: the model has no chat
  const text::ToolFormat* tool_format = nullptr;    // null: answers are not parsed
  bool has_reasoning = false;                       // the chat template has reasoning markers
};

class RequestTranslator {
 public:
  explicit RequestTranslator(TranslatorOptions options)
      : options_(std::make_unique<Published<TranslatorOptions>>(std::move(options))) {}

  absl::StatusOr<engine::Request> ToRequest(const v1::GenerateRequest& message,
                                            const CallInfo& call) const;

  // Returns OK for "", the model's id and its aliases; otherwise NOT_FOUND / MODEL_NOT_FOUND.
  absl::Status CheckModel(absl::string_view name) const;

  // Returns why a chat that names no template cannot be rendered, or "".
  std::string ChatProblem() const;

  std::shared_ptr<const TranslatorOptions> options() const { return options_->Get(); }
  // Applies to later requests. The model's id must not change.
  void SetOptions(std::shared_ptr<const TranslatorOptions> options) {
    options_->Set(std::move(options));
  }

 private:
  std::unique_ptr<Published<TranslatorOptions>> options_;
};

// Returns INVALID_ARGUMENT / BAD_PARAMETER unless `id` is 1..128 characters of [A-Za-z0-9_.:-].
absl::Status CheckRequestId(absl::string_view id, absl::string_view field);
// Returns `id` (the x-request-id header) if `id` followed by `suffix` is a valid request id;
// otherwise a new id. Gateways set the header on every call, so an invalid value is not an error of
// the caller.
std::string ChooseRequestId(absl::string_view id, absl::string_view suffix = "");
// The longest suffix that an evaluation appends to an id. A call has at most 2048 pairs, thus 4096
// items; item i > 0 gets the suffix -i.
inline constexpr absl::string_view kLongestItemSuffix = "-4095";

// Returns true if the constraint may produce JSON. Only then may `whitespace` be set.
bool HasJson(const v1::Constraint& constraint);

// Converts a Duration field. Returns BAD_PARAMETER if it is malformed, negative, or zero while
// `zero_allowed` is false.
absl::StatusOr<absl::Duration> ToDuration(const google::protobuf::Duration& duration,
                                          absl::string_view field, bool zero_allowed);

}  // namespace quire::server
