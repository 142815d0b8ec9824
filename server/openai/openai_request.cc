#include "server/openai/openai_request.h"

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/json_text.h"
#include "base/status.h"
#include "formats/ordered_json.h"
#include "formats/raw_json.h"
#include "server/api/request_translator.h"
#include "server/api/structural_tag_json.h"
#include "server/openai/chat_messages.h"
#include "server/openai/json_fields.h"

namespace quire::server {
namespace {

using formats::JsonValue;

constexpr std::size_t kMaxPrompts = 2048;
constexpr std::int64_t kMaxChoices = 2048;  // over all prompts of a list
// Maximum memory of the parameters that are copied for each prompt, over all prompts of a list.
constexpr std::size_t kMaxCopiedBytes = 64 << 20;
constexpr std::size_t kMaxLabelBytes = 64;

absl::Status ReadLogitBias(const JsonFields& body, const OpenAiLimits& limits,
                           v1::SamplingParams* sampling) {
  const auto bias = body.Find("logit_bias");
  if (!bias) return absl::OkStatus();
  if (!bias->is_object())
    return BadField(*bias, "must be an object that maps token ids to numbers");
  if (bias->raw().size() > static_cast<std::size_t>(limits.max_logit_bias_entries)) {
    return BadField(*bias, absl::StrCat("has ", bias->raw().size(), " entries, at most ",
                                        limits.max_logit_bias_entries, " are allowed"));
  }
  for (const auto& [key, value] : bias->raw().items()) {
    std::int32_t token = 0;
    if (!absl::SimpleAtoi(key, &token) || !value.is_number()) {
      return BadField(*bias, "must be an object that maps token ids to numbers");
    }
    (*sampling->mutable_logit_bias())[token] = static_cast<float>(value.get<double>());
  }
  return absl::OkStatus();
}

constexpr std::int32_t kAnyId = std::numeric_limits<std::int32_t>::min();  // ids are checked later

absl::Status ReadAllowedTokens(const JsonFields& body, v1::SamplingParams* sampling) {
  const auto ids = body.Find("allowed_token_ids");
  if (!ids) return absl::OkStatus();
  if (ids->is_array() && ids->size() == 0) {
    return BadField(*ids, "must have at least one id; omit it to allow all tokens");
  }
  return ReadTokenIds(*ids, kAnyId, [&](std::int32_t id) { sampling->add_allowed_token_ids(id); });
}

// Reads DRY parameters under the names of llama.cpp.
absl::Status ReadDry(const JsonFields& body, v1::SamplingParams* sampling) {
  QUIRE_RETURN_IF_ERROR(
      body.Float("dry_multiplier", [&](float v) { sampling->set_dry_multiplier(v); }));
  QUIRE_RETURN_IF_ERROR(body.Float("dry_base", [&](float v) { sampling->set_dry_base(v); }));
  QUIRE_RETURN_IF_ERROR(body.Int32("dry_allowed_length",
                                   [&](std::int32_t v) { sampling->set_dry_allowed_length(v); }));
  // -1 means the whole context, 0 means off.
  QUIRE_RETURN_IF_ERROR(body.Int32("dry_penalty_last_n", [&](std::int32_t v) {
    sampling->set_dry_window_tokens(v == -1 ? 0 : v);
    if (v == 0) sampling->set_dry_multiplier(0);
  }));
  const auto breakers = body.Find("dry_sequence_breakers");
  if (!breakers) return absl::OkStatus();
  if (breakers->is_array() && breakers->size() == 0) {
    return BadField(*breakers, "must have at least one string; omit it to use the default");
  }
  return ReadStrings(
      *breakers, [&](std::string text) { sampling->add_dry_sequence_breakers(std::move(text)); });
}

absl::Status ReadSampling(const JsonFields& body, v1::SamplingParams* sampling) {
  QUIRE_RETURN_IF_ERROR(body.Float("temperature", [&](float v) { sampling->set_temperature(v); }));
  QUIRE_RETURN_IF_ERROR(body.Float("top_p", [&](float v) { sampling->set_top_p(v); }));
  QUIRE_RETURN_IF_ERROR(body.Float("min_p", [&](float v) { sampling->set_min_p(v); }));
  // Clients of other servers send -1 for "off".
  QUIRE_RETURN_IF_ERROR(
      body.Int32("top_k", [&](std::int32_t v) { sampling->set_top_k(v == -1 ? 0 : v); }));
  QUIRE_RETURN_IF_ERROR(
      body.Float("top_n_sigma", [&](float v) { sampling->set_top_n_sigma(v == -1.0F ? 0 : v); }));
  QUIRE_RETURN_IF_ERROR(
      body.Float("xtc_probability", [&](float v) { sampling->set_xtc_probability(v); }));
  QUIRE_RETURN_IF_ERROR(
      body.Float("xtc_threshold", [&](float v) { sampling->set_xtc_threshold(v); }));
  QUIRE_RETURN_IF_ERROR(
      body.Float("repetition_penalty", [&](float v) { sampling->set_repetition_penalty(v); }));
  QUIRE_RETURN_IF_ERROR(
      body.Float("presence_penalty", [&](float v) { sampling->set_presence_penalty(v); }));
  QUIRE_RETURN_IF_ERROR(
      body.Float("frequency_penalty", [&](float v) { sampling->set_frequency_penalty(v); }));
  if (const auto words = body.Find("bad_words")) {
    QUIRE_RETURN_IF_ERROR(
        ReadStrings(*words, [&](std::string text) { sampling->add_banned_text(std::move(text)); }));
  }
  QUIRE_RETURN_IF_ERROR(ReadAllowedTokens(body, sampling));
  QUIRE_RETURN_IF_ERROR(ReadDry(body, sampling));
  QUIRE_RETURN_IF_ERROR(body.Int64("seed", [&](std::int64_t v) { sampling->set_seed(v); }));
  return body.Int32("n", [&](std::int32_t v) { sampling->set_choice_count(v); });
}

absl::Status ReadStops(const JsonValue& stop, v1::StoppingParams* stopping, FieldNames* names) {
  if (stop.is_string()) {
    QUIRE_ASSIGN_OR_RETURN(*stopping->add_stop(), stop.AsString());
    names->Set("stopping.stop[]", "stop");
    return absl::OkStatus();
  }
  if (!stop.is_array()) return BadField(stop, "must be a string or a list of strings");
  return ReadStrings(stop, [&](std::string text) { stopping->add_stop(std::move(text)); });
}

absl::Status ReadStopping(const JsonFields& body, v1::StoppingParams* stopping, FieldNames* names) {
  const auto set_max = [&](std::int32_t v) { stopping->set_max_tokens(v); };
  QUIRE_RETURN_IF_ERROR(body.Int32("max_tokens", set_max));
  QUIRE_RETURN_IF_ERROR(body.Int32("max_completion_tokens", [&](std::int32_t v) {
    set_max(v);
    names->Set("stopping.max_tokens", "max_completion_tokens");
  }));
  QUIRE_RETURN_IF_ERROR(
      body.Int32("min_tokens", [&](std::int32_t v) { stopping->set_min_tokens(v); }));
  QUIRE_RETURN_IF_ERROR(body.Bool("ignore_eos", [&](bool v) { stopping->set_ignore_eos(v); }));
  QUIRE_RETURN_IF_ERROR(
      body.Bool("include_stop_str_in_output", [&](bool v) { stopping->set_include_stop_text(v); }));
  if (const auto stop = body.Find("stop")) QUIRE_RETURN_IF_ERROR(ReadStops(*stop, stopping, names));
  if (const auto ids = body.Find("stop_token_ids")) {
    QUIRE_RETURN_IF_ERROR(
        ReadTokenIds(*ids, kAnyId, [&](std::int32_t id) { stopping->add_stop_token_ids(id); }));
  }
  return absl::OkStatus();
}

// Returns the text of a schema with its keys in the order of the body, because answers have that
// order. `raw` is the schema's text in the body. A schema that is a string is returned as it is.
absl::StatusOr<std::string> ReadSchema(const JsonValue& schema, absl::string_view raw) {
  if (schema.is_string()) return schema.AsString();
  return formats::OrderedText(formats::OrderedJson::parse(raw.begin(), raw.end()));
}

// Refuses members other than `known`. Ignoring one could leave the answer less constrained than
// requested.
absl::Status CheckMembers(const JsonValue& object, absl::string_view where,
                          std::initializer_list<absl::string_view> known) {
  for (const auto& [key, value] : object.raw().items()) {
    if (value.is_null() || std::ranges::find(known, key) != known.end()) continue;
    const JsonValue member(value, object.PathOf(key));
    return BadField(member, absl::StrCat("is not supported in ", where));
  }
  return absl::OkStatus();
}

// Returns an error if a constraint is already set. Otherwise records the path of `value` as the
// client's name of the constraint.
absl::Status CheckFirstConstraint(const JsonValue& value, const v1::GenerateRequest& request,
                                  FieldNames* names) {
  if (request.has_constraint()) {
    return BadField(value, "cannot be combined with another constraint");
  }
  names->SetConstraint(value.path());
  return absl::OkStatus();
}

absl::Status ReadStructuralTags(const JsonValue& value, const std::string& text,
                                v1::GenerateRequest* request, FieldNames* names) {
  QUIRE_RETURN_IF_ERROR(CheckFirstConstraint(value, *request, names));
  QUIRE_RETURN_IF_ERROR(ReadStructuralTagJson(
      text, value.path(), request->mutable_constraint()->mutable_structural_tags()));
  constexpr absl::string_view kOurs = "constraint.structural_tags";
  const bool is_short = value.is_object() && value.Find("structures").has_value();
  const std::string base = is_short || value.is_string() ? value.path() : value.PathOf("format");
  const std::string tags = absl::StrCat(base, is_short ? ".structures" : ".tags");
  const auto set = [&](absl::string_view ours, absl::string_view theirs) {
    names->Set(absl::StrCat(kOurs, ours), std::string(theirs));
  };
  set("", base);
  set(".tags", tags);
  set(".tags[].json_schema", absl::StrCat(tags, is_short ? "[].schema" : "[].content.json_schema"));
  set(".tags[].regex", absl::StrCat(tags, "[].content.pattern"));
  set(".tags[].ebnf_grammar", absl::StrCat(tags, "[].content.grammar"));
  return absl::OkStatus();
}

// Reads the members json, regex, choice, grammar and json_object, whose names begin with `prefix`.
// `raw` is the object's text in the body.
absl::Status ReadConstraintMembers(const JsonFields& fields, const std::string& prefix,
                                   absl::string_view raw, v1::GenerateRequest* request,
                                   FieldNames* names) {
  const std::string json = prefix + "json";
  if (const auto schema = fields.Find(json)) {
    QUIRE_RETURN_IF_ERROR(CheckFirstConstraint(*schema, *request, names));
    QUIRE_ASSIGN_OR_RETURN(std::string text, ReadSchema(*schema, formats::RawMember(raw, json)));
    request->mutable_constraint()->set_json_schema(std::move(text));
  }
  if (const auto regex = fields.Find(prefix + "regex")) {
    QUIRE_RETURN_IF_ERROR(CheckFirstConstraint(*regex, *request, names));
    QUIRE_RETURN_IF_ERROR(
        fields.Text(prefix + "regex", request->mutable_constraint()->mutable_regex()));
  }
  if (const auto grammar = fields.Find(prefix + "grammar")) {
    QUIRE_RETURN_IF_ERROR(CheckFirstConstraint(*grammar, *request, names));
    QUIRE_RETURN_IF_ERROR(
        fields.Text(prefix + "grammar", request->mutable_constraint()->mutable_ebnf_grammar()));
  }
  if (const auto choice = fields.Find(prefix + "choice")) {
    QUIRE_RETURN_IF_ERROR(CheckFirstConstraint(*choice, *request, names));
    v1::ChoiceList* const choices = request->mutable_constraint()->mutable_choice();
    QUIRE_RETURN_IF_ERROR(
        ReadStrings(*choice, [&](std::string text) { choices->add_values(std::move(text)); }));
  }
  bool is_object = false;
  QUIRE_RETURN_IF_ERROR(fields.Bool(prefix + "json_object", &is_object));
  if (!is_object) return absl::OkStatus();
  QUIRE_RETURN_IF_ERROR(
      CheckFirstConstraint(*fields.Find(prefix + "json_object"), *request, names));
  request->mutable_constraint()->mutable_json_object();
  return absl::OkStatus();
}

// Reads vLLM's `structured_outputs` {json, regex, choice, grammar, json_object, structural_tag} and
// its older form, guided_json and so on.
absl::Status ReadGuided(const JsonFields& body, absl::string_view bytes,
                        v1::GenerateRequest* request, FieldNames* names) {
  QUIRE_RETURN_IF_ERROR(ReadConstraintMembers(body, "guided_", bytes, request, names));
  const auto structured = body.Find("structured_outputs");
  if (!structured) return absl::OkStatus();
  if (!structured->is_object()) return BadField(*structured, "must be an object");
  const absl::string_view raw = formats::RawMember(bytes, "structured_outputs");
  if (const auto tags = JsonFields(*structured).Find("structural_tag")) {
    QUIRE_ASSIGN_OR_RETURN(const std::string text,
                           ReadSchema(*tags, formats::RawMember(raw, "structural_tag")));
    QUIRE_RETURN_IF_ERROR(ReadStructuralTags(*tags, text, request, names));
  }
  return ReadConstraintMembers(JsonFields(*structured), "", raw, request, names);
}

// The schema of a response format. `value` is absent if the format has no schema.
struct FormatSchema {
  std::optional<JsonValue> value;
  absl::string_view raw;  // the schema's text in the body
};

// Finds the schema in `schema` or `json_schema`. `json_schema` either contains the schema as a
// member or is the schema itself. `raw` is the format's text in the body.
absl::StatusOr<FormatSchema> FindFormatSchema(const JsonFields& format, absl::string_view raw) {
  const auto direct = format.Find("schema");
  const auto wrapper = format.Find("json_schema");
  if (direct && wrapper) return BadField(*direct, "cannot be combined with json_schema");
  if (direct) return FormatSchema{direct, formats::RawMember(raw, "schema")};
  if (!wrapper) return FormatSchema{};
  if (!wrapper->is_object()) return BadField(*wrapper, "must be an object");
  raw = formats::RawMember(raw, "json_schema");
  if (const auto inner = wrapper->FindNonNull("schema")) {
    QUIRE_RETURN_IF_ERROR(CheckMembers(*wrapper, "a json_schema with the member schema",
                                       {"name", "description", "schema", "strict"}));
    return FormatSchema{inner, formats::RawMember(raw, "schema")};
  }
  // Some clients send the schema itself as json_schema.
  if (wrapper->Find("name") || wrapper->Find("strict")) {
    return BadField(*wrapper, "must have the member schema");
  }
  return FormatSchema{wrapper, raw};
}

absl::Status ReadResponseFormat(const JsonFields& body, absl::string_view bytes,
                                v1::GenerateRequest* request, FieldNames* names) {
  const auto format = body.Find("response_format");
  if (!format) return absl::OkStatus();
  if (!format->is_object()) return BadField(*format, "must be an object");
  const JsonFields fields(*format);
  std::string type;
  QUIRE_RETURN_IF_ERROR(fields.Text("type", &type));
  if (type == "text") return CheckMembers(*format, "a response format of type text", {"type"});
  QUIRE_RETURN_IF_ERROR(CheckFirstConstraint(*format, *request, names));
  const absl::string_view raw = formats::RawMember(bytes, "response_format");
  if (type == "structural_tag") {
    return ReadStructuralTags(*format, std::string(raw), request, names);
  }
  if (type != "json_object" && type != "json_schema") {
    return BadField(*format, absl::StrCat("has the type ", JsonQuoted(TruncateLabel(type)),
                                          ", it must be text, json_object, json_schema or "
                                          "structural_tag"));
  }
  QUIRE_RETURN_IF_ERROR(CheckMembers(*format, absl::StrCat("a response format of type ", type),
                                     {"type", "schema", "json_schema"}));
  QUIRE_ASSIGN_OR_RETURN(const FormatSchema schema, FindFormatSchema(fields, raw));
  if (!schema.value && type == "json_schema") {
    return BadField(*format, "has the type json_schema but no json_schema.schema");
  }
  // An empty schema also means any JSON object.
  const bool allows_any_object = !schema.value || schema.value->raw() == nlohmann::json::object() ||
                                 schema.value->raw() == nlohmann::json(true);
  if (type == "json_object" && allows_any_object) {
    request->mutable_constraint()->mutable_json_object();
    return absl::OkStatus();
  }
  names->SetConstraint(schema.value->path());
  QUIRE_ASSIGN_OR_RETURN(std::string text, ReadSchema(*schema.value, schema.raw));
  request->mutable_constraint()->set_json_schema(std::move(text));
  return absl::OkStatus();
}

absl::Status ReadStream(const JsonFields& body, OpenAiRequest* result) {
  QUIRE_RETURN_IF_ERROR(body.Bool("stream", &result->stream));
  const auto options = body.Find("stream_options");
  if (!options) return absl::OkStatus();
  if (!options->is_object()) return BadField(*options, "must be an object");
  const JsonFields fields(*options);
  // As in vLLM, continuous_usage_stats implies include_usage unless the client sets include_usage
  // to false.
  QUIRE_RETURN_IF_ERROR(fields.Bool("continuous_usage_stats", [&](bool v) {
    result->continuous_usage = result->include_usage = v;
  }));
  QUIRE_RETURN_IF_ERROR(fields.Bool("include_usage", &result->include_usage));
  result->continuous_usage = result->continuous_usage && result->include_usage;
  return absl::OkStatus();
}

// Reads a string that must be `first` or `second`. Returns true for `second`.
absl::StatusOr<bool> ReadWord(const JsonValue& value, absl::string_view first,
                              absl::string_view second) {
  const auto word = value.AsString();
  if (!word.ok()) return NameField(word.status(), value);
  if (*word == first || *word == second) return *word == second;
  return BadField(value, absl::StrCat("is ", JsonQuoted(TruncateLabel(*word)), ", it must be ",
                                      first, " or ", second));
}

// Reads constraint_start and constraint_whitespace, which are also valid with response_format. Also
// reads vLLM's disable_any_whitespace.
absl::Status ReadConstraintOptions(const JsonFields& body, v1::GenerateRequest* request) {
  const bool has_json = HasJson(request->constraint());
  if (const auto structured = body.Find("structured_outputs")) {
    bool is_compact = false;
    QUIRE_RETURN_IF_ERROR(JsonFields(*structured).Bool("disable_any_whitespace", &is_compact));
    if (is_compact && !has_json) {
      return BadField(*JsonFields(*structured).Find("disable_any_whitespace"),
                      "must be false unless the constraint produces JSON");
    }
    if (is_compact) request->mutable_constraint()->set_whitespace(v1::WHITESPACE_POLICY_COMPACT);
  }
  if (const auto start = body.Find("constraint_start")) {
    QUIRE_ASSIGN_OR_RETURN(const bool is_after, ReadWord(*start, "at_start", "after_reasoning"));
    if (!request->has_constraint()) return BadField(*start, "needs a constraint");
    request->mutable_constraint()->set_start(is_after ? v1::CONSTRAINT_START_AFTER_REASONING
                                                      : v1::CONSTRAINT_START_AT_START);
  }
  const auto space = body.Find("constraint_whitespace");
  if (!space) return absl::OkStatus();
  QUIRE_ASSIGN_OR_RETURN(const bool is_compact, ReadWord(*space, "bounded", "compact"));
  if (!has_json) return BadField(*space, "needs a constraint that produces JSON");
  if (!is_compact && request->constraint().whitespace() == v1::WHITESPACE_POLICY_COMPACT) {
    return BadField(*space, "cannot be bounded together with disable_any_whitespace");
  }
  request->mutable_constraint()->set_whitespace(is_compact ? v1::WHITESPACE_POLICY_COMPACT
                                                           : v1::WHITESPACE_POLICY_BOUNDED);
  return absl::OkStatus();
}

// The schema may belong to a tool, and tools are read later. RequestTranslator therefore checks
// that there is a schema.
absl::Status ReadUnenforced(const JsonFields& body, v1::GenerateRequest* request) {
  const auto policy = body.Find("constraint_unenforced");
  if (!policy) return absl::OkStatus();
  QUIRE_ASSIGN_OR_RETURN(const bool annotates, ReadWord(*policy, "refuse", "annotate"));
  request->mutable_constraint()->set_unenforced(annotates ? v1::UNENFORCED_POLICY_ANNOTATE
                                                          : v1::UNENFORCED_POLICY_REFUSE);
  return absl::OkStatus();
}

// Reads vLLM's truncate_prompt_tokens. The value -1 keeps as many tokens as fit into the context.
absl::Status ReadTruncation(const JsonFields& body, v1::GenerateRequest* request) {
  std::int32_t kept = 0;
  QUIRE_RETURN_IF_ERROR(body.Int32("truncate_prompt_tokens", &kept));
  const auto value = body.Find("truncate_prompt_tokens");
  if (!value) return absl::OkStatus();
  if (kept == -1) {
    request->set_truncate_prompt(true);
    return absl::OkStatus();
  }
  if (kept < 1) {
    return BadField(*value, absl::StrCat("is ", kept,
                                         ", it must be the number of prompt tokens to "
                                         "keep, or -1 for what fits into the context"));
  }
  request->set_truncate_prompt_tokens(kept);
  return absl::OkStatus();
}

// Reads prompt_logprobs and return_token_ids.
absl::Status ReadPromptOutput(const JsonFields& body, v1::OutputOptions* output,
                              OpenAiRequest* result) {
  QUIRE_RETURN_IF_ERROR(body.Int32("prompt_logprobs", [&](std::int32_t v) {
    result->prompt_logprobs = true;
    output->set_prompt_logprobs(v);
    result->names.Set("output.prompt_logprobs", "prompt_logprobs");
  }));
  if (result->prompt_logprobs && result->stream) {
    return BadField(*body.Find("prompt_logprobs"),
                    "is not available with stream; set stream to false");
  }
  return body.Bool("return_token_ids", &result->token_ids);
}

// Reads the fields that completions and chat calls share.
absl::Status ReadShared(const JsonFields& body, absl::string_view bytes, const OpenAiLimits& limits,
                        v1::GenerateRequest* request, OpenAiRequest* result) {
  QUIRE_RETURN_IF_ERROR(body.Text("model", request->mutable_model()));
  QUIRE_RETURN_IF_ERROR(ReadSampling(body, request->mutable_sampling()));
  QUIRE_RETURN_IF_ERROR(ReadLogitBias(body, limits, request->mutable_sampling()));
  FieldNames* const names = &result->names;
  QUIRE_RETURN_IF_ERROR(ReadStopping(body, request->mutable_stopping(), names));
  QUIRE_RETURN_IF_ERROR(ReadResponseFormat(body, bytes, request, names));
  QUIRE_RETURN_IF_ERROR(ReadGuided(body, bytes, request, names));
  QUIRE_RETURN_IF_ERROR(ReadConstraintOptions(body, request));
  QUIRE_RETURN_IF_ERROR(ReadUnenforced(body, request));
  QUIRE_RETURN_IF_ERROR(ReadStream(body, result));
  QUIRE_RETURN_IF_ERROR(ReadTruncation(body, request));
  QUIRE_RETURN_IF_ERROR(ReadPromptOutput(body, request->mutable_output(), result));
  QUIRE_RETURN_IF_ERROR(body.Int32("stream_interval", [&](std::int32_t v) {
    request->mutable_output()->set_stream_interval_tokens(v);
    result->names.Set("output.stream_interval_tokens", "stream_interval");
  }));
  QUIRE_RETURN_IF_ERROR(body.Int32("priority", [&](std::int32_t v) { request->set_priority(v); }));
  QUIRE_RETURN_IF_ERROR(body.Text("cache_salt", [&](std::string salt) {
    request->mutable_cache()->set_salt(std::move(salt));
  }));
  QUIRE_RETURN_IF_ERROR(body.Bool("skip_special_tokens", [&](bool skip) {
    request->mutable_output()->set_skip_special_tokens(skip);
  }));
  QUIRE_RETURN_IF_ERROR(body.Text("user", [&](std::string user) {
    (*request->mutable_labels())["user"] = TruncateLabel(std::move(user));
  }));
  request->mutable_output()->set_stream(result->stream);
  request->mutable_output()->set_usage_every_chunk(result->stream && result->continuous_usage);
  request->mutable_output()->set_text(true);
  // The ids of the prompt are returned as part of the echo.
  request->mutable_output()->set_token_ids(result->token_ids);
  request->mutable_output()->set_echo_prompt(result->token_ids);
  // The translator refuses values below 1 later, so count at least one choice.
  if (request->sampling().has_choice_count()) {
    result->choices = std::max(request->sampling().choice_count(), 1);
  }
  result->returned_choices = result->choices;
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
  return ReadTokenIds(prompt, kAnyId, [&](std::int32_t id) { ids->add_ids(id); });
}

absl::Status AddPrompts(const JsonFields& body, const v1::GenerateRequest& shared,
                        OpenAiRequest* result) {
  const auto prompt = body.Find("prompt");
  if (!prompt) return MissingInput("prompt");
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
                                          " choices in total are allowed"));
  }
  const std::size_t copied = shared.SpaceUsedLong() * prompt->size();
  if (copied > kMaxCopiedBytes) {
    return BadField(*prompt, absl::StrCat("has ", prompt->size(), " prompts, which take ", copied,
                                          " bytes with the copied parameters, at most ",
                                          kMaxCopiedBytes, " are allowed"));
  }
  for (std::size_t i = 0; i < prompt->size(); ++i) {
    QUIRE_RETURN_IF_ERROR(AddPrompt(prompt->At(i), shared, result));
  }
  return absl::OkStatus();
}

// Reads best_of, the number of choices that are generated. The best n of them are returned.
absl::Status ReadBestOf(const JsonFields& body, v1::GenerateRequest* shared,
                        OpenAiRequest* result) {
  std::int32_t best = result->choices;
  QUIRE_RETURN_IF_ERROR(body.Int32("best_of", &best));
  const v1::SamplingParams& sampling = shared->sampling();
  const bool is_n_valid = !sampling.has_choice_count() || sampling.choice_count() >= 1;
  // The translator refuses an n below 1 later.
  if (best == result->choices || !is_n_valid) return absl::OkStatus();
  const JsonValue value = *body.Find("best_of");
  if (best < result->choices) {
    return BadField(
        value, absl::StrCat("is ", best, ", it must be at least n, which is ", result->choices));
  }
  if (result->stream) {
    return BadField(value,
                    "must be equal to n if stream is true, because choices are ranked when "
                    "they are complete");
  }
  result->choices = best;
  result->names.Set("sampling.choice_count", "best_of");
  shared->mutable_sampling()->set_choice_count(best);
  if (!shared->output().has_logprobs()) shared->mutable_output()->set_logprobs(0);
  return absl::OkStatus();
}

}  // namespace

std::string TruncateLabel(std::string text) {
  if (text.size() <= kMaxLabelBytes) return text;
  std::size_t end = kMaxLabelBytes;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) --end;
  text.resize(end);
  return text;
}

absl::StatusOr<formats::JsonDocument> ParseBody(absl::string_view body, const FieldTable& table,
                                                std::uint32_t owner, const OpenAiLimits& limits) {
  auto document = formats::JsonDocument::Parse(
      body, {.max_depth = limits.max_json_depth, .max_nodes = limits.max_json_nodes});
  absl::Status status = document.status();
  if (status.ok()) status = document->root().CheckObject();
  if (!status.ok()) {
    return WithReason(absl::InvalidArgumentError(absl::StrCat("body: ", status.message())),
                      Reason::kBadParameter, {{"field", "body"}});
  }
  QUIRE_RETURN_IF_ERROR(CheckFields(table, document->root(), owner, limits.on_unknown_field));
  return document;
}

absl::StatusOr<OpenAiRequest> ParseCompletionRequest(absl::string_view bytes,
                                                     const OpenAiLimits& limits) {
  QUIRE_ASSIGN_OR_RETURN(const formats::JsonDocument document,
                         ParseBody(bytes, RequestFields(), kCompletionBody, limits));
  const JsonFields body(document.root());
  OpenAiRequest result;
  v1::GenerateRequest shared;
  QUIRE_RETURN_IF_ERROR(ReadShared(body, bytes, limits, &shared, &result));
  QUIRE_RETURN_IF_ERROR(body.Bool("echo", &result.echo));
  QUIRE_RETURN_IF_ERROR(
      body.Bool("add_special_tokens", [&](bool v) { shared.set_add_special_tokens(v); }));
  v1::OutputOptions* const output = shared.mutable_output();
  QUIRE_RETURN_IF_ERROR(body.Int32("logprobs", [&](std::int32_t v) {
    result.logprobs = true;
    output->set_logprobs(v);
    if (result.echo && !result.prompt_logprobs) output->set_prompt_logprobs(v);
  }));
  if (result.echo && result.logprobs && output->prompt_logprobs() != output->logprobs()) {
    return BadField(*body.Find("prompt_logprobs"), "must be equal to logprobs if echo is true");
  }
  QUIRE_RETURN_IF_ERROR(ReadBestOf(body, &shared, &result));
  output->set_echo_prompt(result.echo || result.token_ids);
  if (result.echo && shared.stopping().has_max_tokens() && shared.stopping().max_tokens() == 0) {
    result.hides_output = true;
    shared.mutable_stopping()->set_max_tokens(1);
    shared.mutable_stopping()->clear_min_tokens();
  }
  // The first prompt token has no log-probability entry to carry its text, so its id is requested.
  // With hidden output the ids show whether the prompt ends within a character.
  output->set_token_ids(result.token_ids ||
                        (result.echo && (result.logprobs || result.hides_output)));
  QUIRE_RETURN_IF_ERROR(AddPrompts(body, shared, &result));
  return result;
}

absl::StatusOr<OpenAiRequest> ParseChatRequest(absl::string_view bytes,
                                               const OpenAiLimits& limits) {
  QUIRE_ASSIGN_OR_RETURN(const formats::JsonDocument document,
                         ParseBody(bytes, RequestFields(), kChatBody, limits));
  const JsonFields body(document.root());
  OpenAiRequest result;
  result.is_chat = true;
  v1::GenerateRequest request;
  QUIRE_RETURN_IF_ERROR(ReadShared(body, bytes, limits, &request, &result));
  QUIRE_RETURN_IF_ERROR(body.Bool("logprobs", &result.logprobs));
  v1::OutputOptions* const output = request.mutable_output();
  if (result.logprobs) output->set_logprobs(0);
  const auto top = body.Find("top_logprobs");
  if (top && !result.logprobs) return BadField(*top, "needs logprobs to be true");
  QUIRE_RETURN_IF_ERROR(
      body.Int32("top_logprobs", [&](std::int32_t v) { output->set_logprobs(v); }));
  // In a chat request, logprobs is a boolean and top_logprobs is the number.
  result.names.Set("output.logprobs", "top_logprobs");
  result.names.Set("prompt", "messages");
  // Without an explicit constraint, the only constraint is that of the tools, so errors name
  // `tools`.
  if (request.constraint().kind_case() == v1::Constraint::KIND_NOT_SET) {
    result.names.SetConstraint(body.Find("functions") ? "functions" : "tools");
  }
  result.uses_functions = body.Find("functions").has_value();
  QUIRE_RETURN_IF_ERROR(ReadChatPrompt(body, bytes, request.mutable_chat(), &result.names));
  output->set_parse(true);
  result.prompts.push_back(std::move(request));
  return result;
}

}  // namespace quire::server
