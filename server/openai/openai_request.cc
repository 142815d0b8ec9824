#include "server/openai/openai_request.h"

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/json_text.h"
#include "base/status.h"
#include "formats/json_value.h"
#include "server/openai/chat_messages.h"
#include "server/openai/json_fields.h"

namespace quire::server {
namespace {

using formats::JsonValue;

constexpr std::size_t kMaxPrompts = 2048;
constexpr std::int64_t kMaxChoices = 2048;  // of all prompts of a list
// Of what is copied for every prompt, all copies together, as memory.
constexpr std::size_t kMaxCopiedBytes = 64 << 20;
constexpr std::size_t kMaxLabelBytes = 64;

absl::Status BadField(const JsonValue& value, absl::string_view problem) {
  return NameField(value.Error(problem), value);
}

absl::Status ReadLogitBias(const JsonFields& body, const OpenAiLimits& limits,
                           v1::SamplingParams* sampling) {
  const auto bias = body.Find("logit_bias");
  if (!bias) return absl::OkStatus();
  if (!bias->is_object()) return BadField(*bias, "must be an object of token ids and numbers");
  if (bias->raw().size() > static_cast<std::size_t>(limits.max_logit_bias_entries)) {
    return BadField(*bias, absl::StrCat("has ", bias->raw().size(), " entries, at most ",
                                        limits.max_logit_bias_entries, " are allowed"));
  }
  for (const auto& [key, value] : bias->raw().items()) {
    std::int32_t token = 0;
    if (!absl::SimpleAtoi(key, &token) || !value.is_number()) {
      return BadField(*bias, "must be an object of token ids and numbers");
    }
    (*sampling->mutable_logit_bias())[token] = static_cast<float>(value.get<double>());
  }
  return absl::OkStatus();
}

absl::Status ReadSampling(const JsonFields& body, v1::SamplingParams* sampling) {
  QUIRE_RETURN_IF_ERROR(body.Float("temperature", [&](float v) { sampling->set_temperature(v); }));
  QUIRE_RETURN_IF_ERROR(body.Float("top_p", [&](float v) { sampling->set_top_p(v); }));
  QUIRE_RETURN_IF_ERROR(body.Float("min_p", [&](float v) { sampling->set_min_p(v); }));
  // Clients of other servers write -1 for "off".
  QUIRE_RETURN_IF_ERROR(
      body.Int32("top_k", [&](std::int32_t v) { sampling->set_top_k(v == -1 ? 0 : v); }));
  QUIRE_RETURN_IF_ERROR(
      body.Float("repetition_penalty", [&](float v) { sampling->set_repetition_penalty(v); }));
  QUIRE_RETURN_IF_ERROR(
      body.Float("presence_penalty", [&](float v) { sampling->set_presence_penalty(v); }));
  QUIRE_RETURN_IF_ERROR(
      body.Float("frequency_penalty", [&](float v) { sampling->set_frequency_penalty(v); }));
  QUIRE_RETURN_IF_ERROR(body.Int64("seed", [&](std::int64_t v) { sampling->set_seed(v); }));
  return body.Int32("n", [&](std::int32_t v) { sampling->set_choice_count(v); });
}

template <typename Add>
absl::Status ReadIds(const JsonValue& list, Add add) {
  if (!list.is_array()) return BadField(list, "must be a list of token ids");
  for (std::size_t i = 0; i < list.size(); ++i) {
    const JsonValue id = list.At(i);
    const auto value = id.AsInteger(std::numeric_limits<std::int32_t>::min(),
                                    std::numeric_limits<std::int32_t>::max());
    if (!value.ok()) return NameField(value.status(), id);
    add(static_cast<std::int32_t>(*value));
  }
  return absl::OkStatus();
}

absl::Status ReadStops(const JsonValue& stop, v1::StoppingParams* stopping) {
  if (stop.is_string()) {
    QUIRE_ASSIGN_OR_RETURN(*stopping->add_stop(), stop.AsString());
    return absl::OkStatus();
  }
  if (!stop.is_array()) return BadField(stop, "must be a string or a list of strings");
  for (std::size_t i = 0; i < stop.size(); ++i) {
    auto text = stop.At(i).AsString();
    if (!text.ok()) return NameField(text.status(), stop.At(i));
    stopping->add_stop(*std::move(text));
  }
  return absl::OkStatus();
}

absl::Status ReadStopping(const JsonFields& body, v1::StoppingParams* stopping) {
  const auto set_max = [&](std::int32_t v) { stopping->set_max_tokens(v); };
  QUIRE_RETURN_IF_ERROR(body.Int32("max_tokens", set_max));
  QUIRE_RETURN_IF_ERROR(body.Int32("max_completion_tokens", set_max));
  QUIRE_RETURN_IF_ERROR(
      body.Int32("min_tokens", [&](std::int32_t v) { stopping->set_min_tokens(v); }));
  QUIRE_RETURN_IF_ERROR(body.Bool("ignore_eos", [&](bool v) { stopping->set_ignore_eos(v); }));
  QUIRE_RETURN_IF_ERROR(
      body.Bool("include_stop_str_in_output", [&](bool v) { stopping->set_include_stop_text(v); }));
  if (const auto stop = body.Find("stop")) QUIRE_RETURN_IF_ERROR(ReadStops(*stop, stopping));
  if (const auto ids = body.Find("stop_token_ids")) {
    QUIRE_RETURN_IF_ERROR(
        ReadIds(*ids, [&](std::int32_t id) { stopping->add_stop_token_ids(id); }));
  }
  return absl::OkStatus();
}

// Told to the constraint as it is, so that a build without constraints refuses it in its own words.
absl::Status ReadResponseFormat(const JsonFields& body, v1::GenerateRequest* request) {
  const auto format = body.Find("response_format");
  if (!format) return absl::OkStatus();
  if (!format->is_object()) return BadField(*format, "must be an object");
  const JsonFields fields(*format);
  std::string type;
  QUIRE_RETURN_IF_ERROR(fields.Text("type", [&](std::string value) { type = value; }));
  if (type == "text") return absl::OkStatus();
  if (type == "json_object") {
    request->mutable_constraint()->mutable_json_object();
    return absl::OkStatus();
  }
  const auto schema = fields.Find("json_schema");
  if (type != "json_schema" || !schema || !schema->is_object()) {
    return BadField(*format, "must have the type text, json_object or json_schema with its schema");
  }
  const auto inner = schema->Find("schema");
  request->mutable_constraint()->set_json_schema(JsonText((inner ? *inner : *schema).raw()));
  return absl::OkStatus();
}

absl::Status ReadStream(const JsonFields& body, OpenAiRequest* result) {
  QUIRE_RETURN_IF_ERROR(body.Bool("stream", [&](bool v) { result->stream = v; }));
  const auto options = body.Find("stream_options");
  if (!options) return absl::OkStatus();
  if (!options->is_object()) return BadField(*options, "must be an object");
  return JsonFields(*options).Bool("include_usage", [&](bool v) { result->include_usage = v; });
}

// A label is for the log only, so a longer name is cut rather than refused; no half characters.
std::string CutLabel(std::string text) {
  if (text.size() <= kMaxLabelBytes) return text;
  std::size_t end = kMaxLabelBytes;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) --end;
  text.resize(end);
  return text;
}

// What both calls have.
absl::Status ReadShared(const JsonFields& body, const OpenAiLimits& limits,
                        v1::GenerateRequest* request, OpenAiRequest* result) {
  QUIRE_RETURN_IF_ERROR(
      body.Text("model", [&](std::string name) { request->set_model(std::move(name)); }));
  QUIRE_RETURN_IF_ERROR(ReadSampling(body, request->mutable_sampling()));
  QUIRE_RETURN_IF_ERROR(ReadLogitBias(body, limits, request->mutable_sampling()));
  QUIRE_RETURN_IF_ERROR(ReadStopping(body, request->mutable_stopping()));
  QUIRE_RETURN_IF_ERROR(ReadResponseFormat(body, request));
  QUIRE_RETURN_IF_ERROR(ReadStream(body, result));
  QUIRE_RETURN_IF_ERROR(body.Int32("priority", [&](std::int32_t v) { request->set_priority(v); }));
  QUIRE_RETURN_IF_ERROR(body.Text("cache_salt", [&](std::string salt) {
    request->mutable_cache()->set_salt(std::move(salt));
  }));
  QUIRE_RETURN_IF_ERROR(body.Bool("skip_special_tokens", [&](bool skip) {
    request->mutable_output()->set_skip_special_tokens(skip);
  }));
  QUIRE_RETURN_IF_ERROR(body.Text("user", [&](std::string user) {
    (*request->mutable_labels())["user"] = CutLabel(std::move(user));
  }));
  request->mutable_output()->set_stream(result->stream);
  request->mutable_output()->set_text(true);
  // Only what the translator will accept is worth counting with.
  if (request->sampling().has_choice_count()) {
    result->choices = std::max(request->sampling().choice_count(), 1);
  }
  return absl::OkStatus();
}

absl::Status AddPrompt(const JsonValue& prompt, const v1::GenerateRequest& shared,
                       OpenAiRequest* result) {
  v1::GenerateRequest& request = result->prompts.emplace_back(shared);
  if (prompt.is_string()) {
    QUIRE_ASSIGN_OR_RETURN(*request.mutable_text(), prompt.AsString());
    return absl::OkStatus();
  }
  if (!prompt.is_array()) return BadField(prompt, "must be a string or a list of token ids");
  v1::TokenIds* const ids = request.mutable_token_ids();
  return ReadIds(prompt, [&](std::int32_t id) { ids->add_ids(id); });
}

absl::Status AddPrompts(const JsonFields& body, const v1::GenerateRequest& shared,
                        OpenAiRequest* result) {
  const auto prompt = body.Find("prompt");
  if (!prompt) {
    return WithReason(absl::InvalidArgumentError("prompt is missing"), Reason::kPromptMissing,
                      {{"field", "prompt"}});
  }
  const bool is_list = prompt->is_array() && prompt->size() > 0 && !prompt->At(0).is_number();
  if (!is_list) return AddPrompt(*prompt, shared, result);
  if (prompt->size() > kMaxPrompts) {
    return BadField(*prompt, absl::StrCat("has ", prompt->size(), " prompts, at most ", kMaxPrompts,
                                          " are allowed"));
  }
  const std::int64_t choices = static_cast<std::int64_t>(prompt->size()) * result->choices;
  if (prompt->size() > 1 && choices > kMaxChoices) {
    return BadField(*prompt, absl::StrCat("has ", prompt->size(), " prompts of ", result->choices,
                                          " choices each, at most ", kMaxChoices,
                                          " choices in all are allowed"));
  }
  const std::size_t copied = shared.SpaceUsedLong() * prompt->size();
  if (copied > kMaxCopiedBytes) {
    return BadField(*prompt,
                    absl::StrCat("has ", prompt->size(),
                                 " prompts, with whose copies of "
                                 "the parameters the request takes ",
                                 copied, " bytes, at most ", kMaxCopiedBytes, " are allowed"));
  }
  for (std::size_t i = 0; i < prompt->size(); ++i) {
    QUIRE_RETURN_IF_ERROR(AddPrompt(prompt->At(i), shared, result));
  }
  return absl::OkStatus();
}

// Parameters of completions that would change the answer and that nothing here serves.
absl::Status RefuseUnserved(const JsonFields& body, std::int32_t choices) {
  const auto best_of = body.Find("best_of");
  std::int32_t best = choices;
  QUIRE_RETURN_IF_ERROR(body.Int32("best_of", [&](std::int32_t v) { best = v; }));
  if (best != choices) return BadField(*best_of, "must be equal to n; choices are not ranked");
  std::string text;
  QUIRE_RETURN_IF_ERROR(body.Text("suffix", [&](std::string v) { text = std::move(v); }));
  if (!text.empty()) return BadField(*body.Find("suffix"), "must be empty; nothing is inserted");
  return absl::OkStatus();
}

absl::StatusOr<formats::JsonDocument> ParseObject(absl::string_view body,
                                                  const OpenAiLimits& limits) {
  auto document = formats::JsonDocument::Parse(
      body, {.max_depth = limits.max_json_depth, .max_nodes = limits.max_json_nodes});
  absl::Status status = document.status();
  if (status.ok()) status = document->root().CheckObject();
  if (!status.ok()) {
    return WithReason(absl::InvalidArgumentError(absl::StrCat("body: ", status.message())),
                      Reason::kBadParameter, {{"field", "body"}});
  }
  return document;
}

}  // namespace

absl::StatusOr<OpenAiRequest> ParseCompletionRequest(absl::string_view bytes,
                                                     const OpenAiLimits& limits) {
  QUIRE_ASSIGN_OR_RETURN(const formats::JsonDocument document, ParseObject(bytes, limits));
  const JsonFields body(document.root());
  OpenAiRequest result;
  v1::GenerateRequest shared;
  QUIRE_RETURN_IF_ERROR(ReadShared(body, limits, &shared, &result));
  QUIRE_RETURN_IF_ERROR(RefuseUnserved(body, result.choices));
  QUIRE_RETURN_IF_ERROR(body.Bool("echo", [&](bool v) { result.echo = v; }));
  QUIRE_RETURN_IF_ERROR(
      body.Bool("add_special_tokens", [&](bool v) { shared.set_add_special_tokens(v); }));
  v1::OutputOptions* const output = shared.mutable_output();
  QUIRE_RETURN_IF_ERROR(body.Int32("logprobs", [&](std::int32_t v) {
    result.logprobs = true;
    output->set_logprobs(v);
    if (result.echo) output->set_prompt_logprobs(v);
  }));
  output->set_echo_prompt(result.echo);
  // The first token of a prompt has no log-probability, but its text is told from its id.
  output->set_token_ids(result.echo && result.logprobs);
  if (result.echo && shared.stopping().has_max_tokens() && shared.stopping().max_tokens() == 0) {
    result.hides_output = true;
    shared.mutable_stopping()->set_max_tokens(1);
    shared.mutable_stopping()->clear_min_tokens();
  }
  QUIRE_RETURN_IF_ERROR(AddPrompts(body, shared, &result));
  return result;
}

absl::StatusOr<OpenAiRequest> ParseChatRequest(absl::string_view bytes,
                                               const OpenAiLimits& limits) {
  QUIRE_ASSIGN_OR_RETURN(const formats::JsonDocument document, ParseObject(bytes, limits));
  const JsonFields body(document.root());
  OpenAiRequest result;
  result.is_chat = true;
  v1::GenerateRequest request;
  QUIRE_RETURN_IF_ERROR(ReadShared(body, limits, &request, &result));
  QUIRE_RETURN_IF_ERROR(body.Bool("logprobs", [&](bool v) { result.logprobs = v; }));
  v1::OutputOptions* const output = request.mutable_output();
  if (result.logprobs) output->set_logprobs(0);
  const auto top = body.Find("top_logprobs");
  if (top && !result.logprobs) return BadField(*top, "needs logprobs to be true");
  QUIRE_RETURN_IF_ERROR(
      body.Int32("top_logprobs", [&](std::int32_t v) { output->set_logprobs(v); }));
  QUIRE_RETURN_IF_ERROR(ReadChatPrompt(body, request.mutable_chat()));
  result.prompts.push_back(std::move(request));
  return result;
}

}  // namespace quire::server
