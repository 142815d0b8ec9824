#include "server/api/request_translator.h"

#include <google/protobuf/duration.pb.h>

#include <algorithm>
#include <random>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/error_reason.h"
#include "base/status.h"
#include "quire/v1/generation.pb.h"
#include "server/api/chat_translator.h"
#include "server/api/forced_calls.h"
#include "server/api/status_mapping.h"
#include "text/chat/chat_template.h"
#include "text/tools/declared_tools.h"
#include "text/tools/tool_format.h"

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

// Returns the limits of the templates, or the default limits if there are no templates.
text::jinja::JsonLimits GetJsonLimits(const TranslatorOptions& options) {
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
      QUIRE_ASSIGN_OR_RETURN(prompt.chat, ToChatInput(message.chat(), GetJsonLimits(options)));
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

void ReadDry(const v1::SamplingParams& message, engine::DryParams* dry) {
  if (message.has_dry_multiplier()) dry->multiplier = message.dry_multiplier();
  if (message.has_dry_base()) dry->base = message.dry_base();
  if (message.has_dry_allowed_length()) dry->allowed_length = message.dry_allowed_length();
  if (message.has_dry_window_tokens()) dry->window_tokens = message.dry_window_tokens();
  if (message.dry_sequence_breakers().empty()) return;
  dry->breakers.assign(message.dry_sequence_breakers().begin(),
                       message.dry_sequence_breakers().end());
}

void ReadSampling(const v1::SamplingParams& message, engine::SamplingParams* sampling) {
  if (message.has_temperature()) sampling->temperature = message.temperature();
  if (message.has_top_p()) sampling->top_p = message.top_p();
  if (message.has_top_k()) sampling->top_k = message.top_k();
  if (message.has_min_p()) sampling->min_p = message.min_p();
  if (message.has_top_n_sigma()) sampling->top_n_sigma = message.top_n_sigma();
  if (message.has_xtc_probability()) sampling->xtc_probability = message.xtc_probability();
  if (message.has_xtc_threshold()) sampling->xtc_threshold = message.xtc_threshold();
  if (message.has_repetition_penalty()) {
    sampling->repetition_penalty = message.repetition_penalty();
  }
  if (message.has_presence_penalty()) sampling->presence_penalty = message.presence_penalty();
  if (message.has_frequency_penalty()) sampling->frequency_penalty = message.frequency_penalty();
  if (message.has_seed()) {
    sampling->seed = static_cast<std::uint64_t>(message.seed());
  } else {
    std::random_device device;
    // 63 bits, so that Started.seed is never negative.
    sampling->seed = (std::uint64_t{device()} << 31) ^ device();
  }
  if (message.has_choice_count()) sampling->choice_count = message.choice_count();
  sampling->logit_bias.assign(message.logit_bias().begin(), message.logit_bias().end());
  std::sort(sampling->logit_bias.begin(), sampling->logit_bias.end());
  sampling->allowed_token_ids.assign(message.allowed_token_ids().begin(),
                                     message.allowed_token_ids().end());
  sampling->banned_text.assign(message.banned_text().begin(), message.banned_text().end());
  ReadDry(message, &sampling->dry);
}

// `limits` are the JSON limits of the template renderer.
absl::StatusOr<text::DeclaredTools> DeclareTools(const text::ChatInput& chat,
                                                 const text::ToolFormat& format,
                                                 const text::jinja::JsonLimits& limits) {
  std::size_t bytes = 0;
  for (const text::ChatTool& tool : chat.tools) bytes += tool.parameters_json.size();
  absl::StatusOr<text::DeclaredTools> declared =
      static_cast<std::int64_t>(bytes) <= limits.max_bytes
          ? text::DeclaredTools::Create(chat.tools, !format.writing.key_begin.empty())
          : absl::InvalidArgumentError(absl::StrCat("tools have ", bytes,
                                                    " bytes of parameters, the limit is ",
                                                    limits.max_bytes, " (limits.max_json_bytes)"));
  if (declared.ok()) return declared;
  return WithReason(
      absl::InvalidArgumentError(absl::StrCat("chat.", declared.status().message())),
      Reason::kBadChatTemplateInput,
      {{"template_name", chat.template_name}, {"line", "0"}, {"field", "chat.tools"}});
}

// Reads output.parse and the tools. REQUIRES: ReadPrompt and ReadOutput were called.
absl::Status ReadParsing(const v1::GenerateRequest& message, const TranslatorOptions& options,
                         engine::Request* request) {
  const v1::ChatPrompt& chat = message.chat();  // empty for other prompts
  const auto* const prompt = std::get_if<engine::ChatPrompt>(&request->prompt);
  const bool ends_after_call = chat.has_parallel_tool_calls() && !chat.parallel_tool_calls();
  if (!message.output().parse()) {
    if (ForcesCalls(chat)) {
      return BadParameter("chat.tool_choice", v1::ToolChoice_Name(chat.tool_choice()),
                          "auto or none without output.parse");
    }
    if (prompt != nullptr && ConstrainsCalls(chat, prompt->chat)) {
      return BadParameter("chat.tools", "a list with a strict tool",
                          "a list without strict tools if output.parse is false");
    }
    if (!ends_after_call) return absl::OkStatus();
    return BadParameter("chat.parallel_tool_calls", "false", "true without output.parse");
  }
  if (prompt == nullptr) return BadParameter("output.parse", "true", "false without a chat prompt");
  if (!request->output.text)
    return BadParameter("output.parse", "true", "false without text output");
  const text::ChatInput& input = prompt->chat;
  if (options.tool_format == nullptr) {
    return ForcesCalls(chat) ? ToForcedCalls(chat, input, nullptr, false).status()
                             : absl::OkStatus();
  }
  QUIRE_ASSIGN_OR_RETURN(text::DeclaredTools declared,
                         DeclareTools(input, *options.tool_format, GetJsonLimits(options)));
  if (ForcesCalls(chat)) {
    if (request->constraint) {
      return BadParameter("constraint", "set", "absent if chat.tool_choice forces a call");
    }
    QUIRE_ASSIGN_OR_RETURN(request->constraint,
                           ToForcedCalls(chat, input, options.tool_format, options.has_reasoning));
  } else if (ConstrainsCalls(chat, input) && options.tool_format->shape != text::CallShape::kNone) {
    if (request->constraint) {
      return BadParameter("constraint", "set", "absent if a tool is strict");
    }
    QUIRE_ASSIGN_OR_RETURN(request->constraint,
                           ToConstrainedCalls(input, *options.tool_format, options.has_reasoning));
  }
  request->parsing = engine::AnswerParsing{
      .format = options.tool_format,
      .tools = std::make_shared<const text::DeclaredTools>(std::move(declared)),
      .ends_after_call = ends_after_call};
  return absl::OkStatus();
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

// Checks a value that the client has set. It must not be negative, because the engine uses -1 for
// "none".
absl::StatusOr<std::int32_t> CheckLogprobCount(std::int32_t value, std::int32_t limit,
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
                           CheckLogprobCount(message.logprobs(), limit, "output.logprobs"));
  }
  if (message.has_prompt_logprobs()) {
    QUIRE_ASSIGN_OR_RETURN(
        output->prompt_logprobs,
        CheckLogprobCount(message.prompt_logprobs(), limit, "output.prompt_logprobs"));
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
  output->processed_logprobs = message.processed_logprobs();
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
      return BadParameter(
          absl::StrCat("labels[\"", key.substr(0, kMaxLabelBytes), "\"]"),
          absl::StrCat(std::max(key.size(), value.size()), " bytes long"),
          absl::StrCat("at most ", kMaxLabelBytes, " bytes for key and value each"));
    }
    request->labels[key] = value;
  }
  return absl::OkStatus();
}

// Reads the deadline of the request and its time limit in the queue.
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

// Returns a random UUID.
std::string NewRequestId() {
  std::random_device device;
  const std::uint32_t a = device(), b = device(), c = device(), d = device();
  // Version 4 in the third group, variant 10 in the fourth (RFC 4122, section 4.4).
  return absl::StrFormat("%08x-%04x-%04x-%04x-%04x%08x", a, b >> 16, (b & 0x0FFF) | 0x4000,
                         (c >> 16 & 0x3FFF) | 0x8000, c & 0xFFFF, d);
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
  request->id = ChooseRequestId(call.metadata_request_id);
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

std::string ChooseRequestId(absl::string_view id, absl::string_view suffix) {
  const std::string whole = absl::StrCat(id, suffix);
  const bool is_usable = !id.empty() && CheckRequestId(whole, "x-request-id").ok();
  return is_usable ? std::string(id) : NewRequestId();
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

absl::StatusOr<engine::ConstraintTag> ReadTag(const v1::StructuralTag& message, int index) {
  engine::ConstraintTag tag{.begin = message.begin(),
                            .end = message.end(),
                            .field = absl::StrCat("constraint.structural_tags.tags[", index, "]")};
  switch (message.content_case()) {
    case v1::StructuralTag::kJsonSchema:
      tag.kind = engine::ConstraintKind::kJsonSchema;
      tag.text = message.json_schema();
      return tag;
    case v1::StructuralTag::kRegex:
      tag.kind = engine::ConstraintKind::kRegex;
      tag.text = message.regex();
      return tag;
    case v1::StructuralTag::kEbnfGrammar:
      tag.kind = engine::ConstraintKind::kGrammar;
      tag.text = message.ebnf_grammar();
      return tag;
    case v1::StructuralTag::CONTENT_NOT_SET:
      break;
  }
  return engine::BadConstraint("compile", absl::StrCat(tag.field, " has no content"));
}

absl::Status ReadTags(const v1::StructuralTags& message, engine::ConstraintSpec* spec) {
  spec->kind = engine::ConstraintKind::kStructuralTags;
  spec->triggers.assign(message.triggers().begin(), message.triggers().end());
  spec->at_least_one_tag = message.at_least_one();
  spec->stop_after_first_tag = message.stop_after_first();
  for (int i = 0; i < message.tags_size(); ++i) {
    QUIRE_ASSIGN_OR_RETURN(engine::ConstraintTag tag, ReadTag(message.tags(i), i));
    spec->tags.push_back(std::move(tag));
  }
  return absl::OkStatus();
}

absl::Status ReadWhitespace(const v1::Constraint& constraint, engine::ConstraintSpec* spec) {
  if (!v1::WhitespacePolicy_IsValid(constraint.whitespace())) {
    return BadParameter("constraint.whitespace", absl::StrCat(constraint.whitespace()), "0 to 2");
  }
  if (constraint.whitespace() == v1::WHITESPACE_POLICY_UNSPECIFIED) return absl::OkStatus();
  if (!HasJson(constraint)) {
    return BadParameter("constraint.whitespace", v1::WhitespacePolicy_Name(constraint.whitespace()),
                        "absent for a constraint without JSON");
  }
  if (constraint.whitespace() == v1::WHITESPACE_POLICY_COMPACT) {
    spec->whitespace = engine::JsonWhitespace::kCompact;
  }
  return absl::OkStatus();
}

// Reads constraint.start. `format` is the tool-call format if the answer is parsed, otherwise null.
// REQUIRES: the other fields of the constraint were read.
absl::Status ReadStart(const v1::Constraint& constraint, const text::ToolFormat* format,
                       bool has_reasoning, engine::ConstraintSpec* spec) {
  const v1::ConstraintStart start = constraint.start();
  if (!v1::ConstraintStart_IsValid(start)) {
    return BadParameter("constraint.start", absl::StrCat(start), "0 to 2");
  }
  if (start == v1::CONSTRAINT_START_AT_START) return absl::OkStatus();
  const bool is_default = start == v1::CONSTRAINT_START_UNSPECIFIED;
  if (is_default && !has_reasoning) return absl::OkStatus();
  if (format != nullptr && !format->reasoning_begin.empty()) {
    spec->starts_after_reasoning = true;
    spec->start_depends_on_prompt = is_default;
    spec->tool_format = format;
    return absl::OkStatus();
  }
  if (is_default) return absl::OkStatus();
  return FeatureUnsupported(
      "constraint.start = CONSTRAINT_START_AFTER_REASONING (without output.parse, or with a model "
      "whose chat.tool_format has no reasoning markers)",
      "constraint.start");
}

// Returns true if `unenforced` is the only field that is set.
bool HasOnlyUnenforced(const v1::Constraint& constraint) {
  return constraint.kind_case() == v1::Constraint::KIND_NOT_SET &&
         constraint.unenforced() != v1::UNENFORCED_POLICY_UNSPECIFIED &&
         constraint.start() == v1::CONSTRAINT_START_UNSPECIFIED &&
         constraint.whitespace() == v1::WHITESPACE_POLICY_UNSPECIFIED;
}

// Reads the constraint. Its text is parsed later, by the threads that compile constraints.
absl::Status ReadConstraint(const v1::GenerateRequest& message, engine::Request* request) {
  if (!message.has_constraint()) return absl::OkStatus();
  const v1::Constraint& constraint = message.constraint();
  engine::ConstraintSpec spec;
  switch (constraint.kind_case()) {
    case v1::Constraint::kJsonSchema:
      spec.kind = engine::ConstraintKind::kJsonSchema;
      spec.text = constraint.json_schema();
      break;
    case v1::Constraint::kRegex:
      spec.kind = engine::ConstraintKind::kRegex;
      spec.text = constraint.regex();
      break;
    case v1::Constraint::kEbnfGrammar:
      spec.kind = engine::ConstraintKind::kGrammar;
      spec.text = constraint.ebnf_grammar();
      break;
    case v1::Constraint::kJsonObject:
      spec.kind = engine::ConstraintKind::kJsonObject;
      break;
    case v1::Constraint::kChoice:
      spec.kind = engine::ConstraintKind::kChoice;
      spec.choices.assign(constraint.choice().values().begin(), constraint.choice().values().end());
      break;
    case v1::Constraint::kStructuralTags:
      QUIRE_RETURN_IF_ERROR(ReadTags(constraint.structural_tags(), &spec));
      break;
    case v1::Constraint::KIND_NOT_SET:
      // If only `unenforced` is set, it applies to the schemas of tool calls. ReadUnenforced checks
      // that there are such schemas.
      if (HasOnlyUnenforced(constraint)) return absl::OkStatus();
      return engine::BadConstraint("compile", "constraint: no kind is set");
  }
  QUIRE_RETURN_IF_ERROR(ReadWhitespace(constraint, &spec));
  request->constraint = std::move(spec);
  return absl::OkStatus();
}

// `spec` is null if the request has no constraint.
absl::Status ReadUnenforced(const v1::Constraint& constraint, engine::ConstraintSpec* spec) {
  const v1::UnenforcedPolicy policy = constraint.unenforced();
  if (!v1::UnenforcedPolicy_IsValid(policy)) {
    return BadParameter("constraint.unenforced", absl::StrCat(policy), "0 to 2");
  }
  if (policy == v1::UNENFORCED_POLICY_UNSPECIFIED) return absl::OkStatus();
  const bool has_schema = constraint.has_json_schema() || constraint.has_structural_tags() ||
                          (spec != nullptr && spec->kind == engine::ConstraintKind::kToolCalls);
  if (!has_schema) {
    return BadParameter("constraint.unenforced", v1::UnenforcedPolicy_Name(policy),
                        "absent if neither the answer nor a tool call has a schema");
  }
  if (policy == v1::UNENFORCED_POLICY_ANNOTATE) {
    spec->unenforced = engine::UnenforcedPolicy::kAnnotate;
  }
  return absl::OkStatus();
}

absl::Status CheckModelName(const TranslatorOptions& options, absl::string_view name) {
  if (name.empty() || name == options.model_id) return absl::OkStatus();
  for (const std::string& alias : options.aliases) {
    if (name == alias) return absl::OkStatus();
  }
  const absl::string_view shown = name.substr(0, 128);
  return WithReason(
      absl::NotFoundError(absl::StrCat("model \"", shown, "\" is not served; this server has \"",
                                       options.model_id, "\"")),
      Reason::kModelNotFound,
      {{"field", "model"}, {"model", std::string(shown)}, {"available", options.model_id}});
}

}  // namespace

bool HasJson(const v1::Constraint& constraint) {
  return constraint.has_json_schema() || constraint.has_json_object() ||
         constraint.has_structural_tags();
}

std::string RequestTranslator::ChatProblem() const {
  const std::shared_ptr<const text::ChatTemplates> chat = options()->chat;
  if (chat == nullptr) return "the model cannot chat";
  if (chat->has_default()) return "";
  return chat->problem().empty() ? "the model has no default chat template" : chat->problem();
}

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
  QUIRE_RETURN_IF_ERROR(ReadConstraint(message, &request));
  request.truncate_prompt = message.truncate_prompt();
  if (message.has_truncate_prompt_tokens()) {
    if (message.truncate_prompt_tokens() < 1) {
      return BadParameter("truncate_prompt_tokens", absl::StrCat(message.truncate_prompt_tokens()),
                          "at least 1");
    }
    request.max_prompt_tokens = message.truncate_prompt_tokens();
  }

  request.sampling = options.sampling_defaults;
  ReadSampling(message.sampling(), &request.sampling);
  QUIRE_RETURN_IF_ERROR(engine::Validate(request.sampling, options.limits));
  ReadStopping(message.stopping(), options, &request.stopping);
  QUIRE_RETURN_IF_ERROR(engine::Validate(request.stopping, options.limits));
  QUIRE_RETURN_IF_ERROR(ReadOutput(message.output(), options, &request.output));
  QUIRE_RETURN_IF_ERROR(engine::Validate(request.output, options.limits));
  QUIRE_RETURN_IF_ERROR(ReadParsing(message, options, &request));
  if (message.has_constraint()) {
    engine::ConstraintSpec* const spec = request.constraint ? &*request.constraint : nullptr;
    QUIRE_RETURN_IF_ERROR(ReadUnenforced(message.constraint(), spec));
    if (!HasOnlyUnenforced(message.constraint())) {
      const text::ToolFormat* const format =
          request.parsing.has_value() ? request.parsing->format : nullptr;
      QUIRE_RETURN_IF_ERROR(ReadStart(message.constraint(), format, options.has_reasoning, spec));
    }
  }

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
