#include "server/api/request_translator.h"

#include <google/protobuf/duration.pb.h>

#include <algorithm>
#include <random>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/error_reason.h"
#include "base/status.h"
#include "quire/v1/generation.pb.h"
#include "server/api/chat_translator.h"
#include "server/api/status_mapping.h"
#include "text/chat/chat_template.h"

namespace quire::server {
namespace {

constexpr std::size_t kMaxRequestIdBytes = 128;
constexpr std::size_t kMaxLabels = 8;
constexpr std::size_t kMaxLabelBytes = 64;
constexpr std::size_t kMaxSaltBytes = 128;
constexpr std::int32_t kMaxPriority = 100;

absl::Status PromptMissing(absl::string_view text) {
  return WithReason(absl::InvalidArgumentError(text), Reason::kPromptMissing,
                    {{"field", "prompt"}});
}

// The translator itself needs no templates.
text::jinja::JsonLimits JsonLimitsOf(const TranslatorOptions& options) {
  return options.chat == nullptr ? text::jinja::JsonLimits() : options.chat->json_limits();
}

absl::Status ReadPrompt(const v1::GenerateRequest& message, const TranslatorOptions& options,
                        engine::Request* request) {
  switch (message.prompt_case()) {
    case v1::GenerateRequest::kText:
      if (message.text().empty()) return PromptMissing("prompt is an empty text");
      request->prompt = engine::TextPrompt{
          .text = message.text(),
          .add_special_tokens =
              message.has_add_special_tokens() ? message.add_special_tokens() : true,
          .parse_special_tokens =
              message.has_parse_special_tokens() ? message.parse_special_tokens() : true};
      return absl::OkStatus();
    case v1::GenerateRequest::kTokenIds:
      if (message.token_ids().ids().empty()) return PromptMissing("prompt has no token ids");
      request->prompt =
          engine::TokenPrompt(message.token_ids().ids().begin(), message.token_ids().ids().end());
      return absl::OkStatus();
    case v1::GenerateRequest::kChat: {
      engine::ChatPrompt prompt;
      QUIRE_ASSIGN_OR_RETURN(prompt.chat, ToChatInput(message.chat(), JsonLimitsOf(options)));
      prompt.templates = options.chat;
      prompt.parse_special_tokens =
          message.has_parse_special_tokens() ? message.parse_special_tokens() : true;
      request->prompt = std::move(prompt);
      return absl::OkStatus();
    }
    default:
      return PromptMissing("prompt is missing; set one of text, token_ids and chat");
  }
}

void ReadSampling(const v1::SamplingParams& message, engine::SamplingParams* sampling) {
  if (message.has_temperature()) sampling->temperature = message.temperature();
  if (message.has_top_p()) sampling->top_p = message.top_p();
  if (message.has_top_k()) sampling->top_k = message.top_k();
  if (message.has_min_p()) sampling->min_p = message.min_p();
  if (message.has_repetition_penalty()) {
    sampling->repetition_penalty = message.repetition_penalty();
  }
  if (message.has_presence_penalty()) sampling->presence_penalty = message.presence_penalty();
  if (message.has_frequency_penalty()) sampling->frequency_penalty = message.frequency_penalty();
  if (message.has_seed()) {
    sampling->seed = static_cast<std::uint64_t>(message.seed());
  } else {
    std::random_device device;
    // 63 bits, so that Started.seed never shows a minus sign.
    sampling->seed = (std::uint64_t{device()} << 31) ^ device();
  }
  if (message.has_choice_count()) sampling->choice_count = message.choice_count();
  sampling->logit_bias.assign(message.logit_bias().begin(), message.logit_bias().end());
  std::sort(sampling->logit_bias.begin(), sampling->logit_bias.end());
}

void ReadStopping(const v1::StoppingParams& message, const TranslatorOptions& options,
                  engine::StoppingParams* stopping) {
  stopping->max_tokens = message.has_max_tokens() ? message.max_tokens()
                                                  : std::min(options.default_max_tokens,
                                                             options.limits.max_tokens_per_request);
  if (message.has_min_tokens()) stopping->min_tokens = message.min_tokens();
  stopping->stop.assign(message.stop().begin(), message.stop().end());
  stopping->stop_token_ids.assign(message.stop_token_ids().begin(), message.stop_token_ids().end());
  stopping->ignore_eos = message.ignore_eos();
  stopping->include_stop_text = message.include_stop_text();
}

// A set value is never negative: -1 is the engine's word for "none".
absl::StatusOr<std::int32_t> LogprobCount(std::int32_t value, std::int32_t limit,
                                          absl::string_view field) {
  if (value < 0 || value > limit) {
    return BadParameter(field, absl::StrCat(value), absl::StrCat("0 to ", limit));
  }
  return value;
}

absl::Status ReadOutput(const v1::OutputOptions& message, const TranslatorOptions& options,
                        engine::OutputParams* output) {
  output->stream = message.stream();
  output->text = message.text() || !message.token_ids();
  output->token_ids = message.token_ids();
  const std::int32_t limit = options.limits.max_logprobs;
  if (message.has_logprobs()) {
    QUIRE_ASSIGN_OR_RETURN(output->logprobs,
                           LogprobCount(message.logprobs(), limit, "output.logprobs"));
  }
  if (message.has_prompt_logprobs()) {
    QUIRE_ASSIGN_OR_RETURN(output->prompt_logprobs, LogprobCount(message.prompt_logprobs(), limit,
                                                                 "output.prompt_logprobs"));
  }
  if (message.has_skip_special_tokens()) {
    output->skip_special_tokens = message.skip_special_tokens();
  }
  output->stream_interval_tokens = message.has_stream_interval_tokens()
                                       ? message.stream_interval_tokens()
                                       : options.stream_interval_tokens;
  output->echo_prompt = message.echo_prompt();
  output->timings = message.timings();
  output->usage_every_chunk = message.usage_every_chunk();
  return absl::OkStatus();
}

absl::Status ReadCache(const v1::CacheOptions& message, engine::CacheParams* cache) {
  if (message.salt().size() > kMaxSaltBytes) {
    return BadParameter("cache.salt", absl::StrCat(message.salt().size(), " bytes long"),
                        absl::StrCat("at most ", kMaxSaltBytes, " bytes"));
  }
  cache->skip_read = message.skip_read();
  cache->skip_write = message.skip_write();
  cache->salt = message.salt();
  return absl::OkStatus();
}

absl::Status ReadLabels(const v1::GenerateRequest& message, engine::Request* request) {
  const auto count = static_cast<std::size_t>(message.labels().size());
  if (count > kMaxLabels) {
    return BadParameter("labels", absl::StrCat(count, " entries long"),
                        absl::StrCat("at most ", kMaxLabels, " entries"));
  }
  for (const auto& [key, value] : message.labels()) {
    if (key.size() > kMaxLabelBytes || value.size() > kMaxLabelBytes) {
      return BadParameter(absl::StrCat("labels[\"", key.substr(0, kMaxLabelBytes), "\"]"),
                          absl::StrCat(std::max(key.size(), value.size()), " bytes long"),
                          absl::StrCat("at most ", kMaxLabelBytes, " bytes on each side"));
    }
    request->labels[key] = value;
  }
  return absl::OkStatus();
}

// When the request must end, and how long it may wait for its first step.
absl::Status ReadTimes(const v1::GenerateRequest& message, const CallInfo& call,
                       const TranslatorOptions& options, engine::Request* request) {
  request->accept_time = call.accept_time;
  request->deadline = std::min(call.grpc_deadline, call.accept_time + options.max_request_duration);
  if (message.has_timeout()) {
    QUIRE_ASSIGN_OR_RETURN(const absl::Duration timeout,
                           ToDuration(message.timeout(), "timeout", /*zero_allowed=*/false));
    request->deadline = std::min(request->deadline, call.accept_time + timeout);
  }
  request->queue_timeout = options.queue_timeout;
  if (message.has_queue_timeout()) {
    QUIRE_ASSIGN_OR_RETURN(
        request->queue_timeout,
        ToDuration(message.queue_timeout(), "queue_timeout", /*zero_allowed=*/false));
  }
  return absl::OkStatus();
}

absl::Status ReadId(const v1::GenerateRequest& message, const CallInfo& call,
                    engine::Request* request) {
  if (!message.request_id().empty()) {
    request->id = message.request_id();
    return CheckRequestId(request->id, "request_id");
  }
  if (call.request_id_required) {
    return BadParameter("generate.request_id", "missing", "set for every item of a batch");
  }
  if (!call.metadata_request_id.empty()) {
    request->id = call.metadata_request_id;
    return CheckRequestId(request->id, "x-request-id");
  }
  request->id = NewRequestId();
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckRequestId(absl::string_view id, absl::string_view field) {
  const bool plain = std::all_of(id.begin(), id.end(), [](char c) {
    return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '.' || c == ':' ||
           c == '-';
  });
  if (id.empty() || id.size() > kMaxRequestIdBytes || !plain) {
    return BadParameter(
        field, absl::StrCat("\"", absl::CHexEscape(id.substr(0, 40)), "\""),
        absl::StrCat("1 to ", kMaxRequestIdBytes, " characters of [A-Za-z0-9_.:-]"));
  }
  return absl::OkStatus();
}

std::string NewRequestId() {
  std::random_device device;
  const std::uint32_t a = device(), b = device(), c = device(), d = device();
  // Version 4 in the third group, variant 10 in the fourth (RFC 4122, section 4.4).
  return absl::StrFormat("%08x-%04x-%04x-%04x-%04x%08x", a, b >> 16, (b & 0x0FFF) | 0x4000,
                         (c >> 16 & 0x3FFF) | 0x8000, c & 0xFFFF, d);
}

absl::StatusOr<absl::Duration> ToDuration(const google::protobuf::Duration& duration,
                                          absl::string_view field, bool zero_allowed) {
  // Ranges of google/protobuf/duration.proto.
  constexpr std::int64_t kMaxSeconds = 315576000000;
  const absl::Duration value =
      absl::Seconds(duration.seconds()) + absl::Nanoseconds(duration.nanos());
  const bool wellformed = duration.seconds() >= -kMaxSeconds && duration.seconds() <= kMaxSeconds &&
                          duration.nanos() > -1000000000 && duration.nanos() < 1000000000;
  if (!wellformed || value < absl::ZeroDuration() ||
      (value == absl::ZeroDuration() && !zero_allowed)) {
    return BadParameter(field, absl::FormatDuration(value),
                        zero_allowed ? "a duration of at least 0" : "a duration above 0");
  }
  return value;
}

namespace {

absl::Status CheckModelName(const TranslatorOptions& options, absl::string_view name) {
  if (name.empty() || name == options.model_id) return absl::OkStatus();
  for (const std::string& alias : options.aliases) {
    if (name == alias) return absl::OkStatus();
  }
  const absl::string_view shown = name.substr(0, 128);
  return WithReason(absl::NotFoundError(absl::StrCat("model \"", shown, "\" is not served")),
                    Reason::kModelNotFound,
                    {{"model", std::string(shown)}, {"available", options.model_id}});
}

}  // namespace

absl::Status RequestTranslator::CheckModel(absl::string_view name) const {
  return CheckModelName(*options(), name);
}

absl::StatusOr<engine::Request> RequestTranslator::ToRequest(const v1::GenerateRequest& message,
                                                             const CallInfo& call) const {
  const std::shared_ptr<const TranslatorOptions> current = this->options();
  const TranslatorOptions& options = *current;
  engine::Request request;
  request.principal = call.principal;
  request.tenant = call.tenant;
  QUIRE_RETURN_IF_ERROR(ReadId(message, call, &request));
  QUIRE_RETURN_IF_ERROR(ReadPrompt(message, options, &request));
  if (message.has_constraint()) return FeatureUnsupported("structured output", "constraint");
  request.truncate_prompt = message.truncate_prompt();

  request.sampling = options.sampling_defaults;
  ReadSampling(message.sampling(), &request.sampling);
  QUIRE_RETURN_IF_ERROR(engine::Validate(request.sampling, options.limits));
  ReadStopping(message.stopping(), options, &request.stopping);
  QUIRE_RETURN_IF_ERROR(engine::Validate(request.stopping, options.limits));
  QUIRE_RETURN_IF_ERROR(ReadOutput(message.output(), options, &request.output));
  QUIRE_RETURN_IF_ERROR(engine::Validate(request.output, options.limits));

  if (message.priority() < -kMaxPriority || message.priority() > kMaxPriority) {
    return BadParameter("priority", absl::StrCat(message.priority()), "-100 to 100");
  }
  request.priority = message.priority();
  QUIRE_RETURN_IF_ERROR(ReadCache(message.cache(), &request.cache));
  QUIRE_RETURN_IF_ERROR(ReadLabels(message, &request));
  QUIRE_RETURN_IF_ERROR(ReadTimes(message, call, options, &request));
  QUIRE_RETURN_IF_ERROR(CheckModelName(options, message.model()));
  request.model = options.model_id;
  return request;
}

}  // namespace quire::server
