// vLLM's endpoints besides those of OpenAI: POST /tokenize and /detokenize, GET /version, GET or
// POST /ping, and GET /load. token_strs are the decoded tokens, with U+FFFD in place of invalid
// UTF-8. vLLM returns the spelling of the vocabulary instead, such as "Ġthe".
//
// Source: vllm/entrypoints/serve/tokenize/protocol.py of vLLM at 030ea52e.

#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/json_text.h"
#include "base/status.h"
#include "quire/v1/text.pb.h"
#include "server/api/status_mapping.h"
#include "server/api/tokenization.h"
#include "server/dialects/dialect_endpoints.h"
#include "server/http/ops_handlers.h"
#include "server/openai/chat_messages.h"
#include "server/openai/json_fields.h"
#include "text/tokenizer/tokenizer.h"

namespace quire::server {
namespace {

using formats::JsonValue;
using nlohmann::ordered_json;

constexpr std::uint32_t kTokenizeBody = 1U << 0, kDetokenizeBody = 1U << 1;

constexpr RequestField kFields[] = {
    Supported("model", kTokenizeBody | kDetokenizeBody),
    Supported("prompt", kTokenizeBody),
    Supported("messages", kTokenizeBody),
    Supported("tools", kTokenizeBody),
    Supported("add_special_tokens", kTokenizeBody),
    Supported("add_generation_prompt", kTokenizeBody),
    Supported("continue_final_message", kTokenizeBody),
    Supported("chat_template", kTokenizeBody),
    Supported("chat_template_kwargs", kTokenizeBody),
    Supported("return_token_strs", kTokenizeBody),
    Supported("tokens", kDetokenizeBody),
    NoMeaning("media_io_kwargs", kTokenizeBody, kObject),
    NoMeaning("mm_processor_kwargs", kTokenizeBody, kObject),
};

const FieldTable& TokenizationFields() {
  static const auto* const kTable = new FieldTable(kFields);
  return *kTable;
}

// Checks each object of the list `key` (messages or tools). The objects have the same fields as in
// chat completions.
absl::Status CheckElements(const JsonFields& body, absl::string_view key, FieldOwner owner,
                           const UnknownFieldHandler& on_unknown) {
  const auto list = body.Find(key);
  if (!list || !list->is_array()) return absl::OkStatus();
  for (std::size_t i = 0; i < list->size(); ++i) {
    const JsonValue element = list->At(i);
    if (!element.is_object()) continue;
    QUIRE_RETURN_IF_ERROR(CheckFields(RequestFields(), element, owner, on_unknown));
  }
  return absl::OkStatus();
}

// Reads all members except return_token_strs.
absl::Status ReadTokenize(const JsonFields& body, absl::string_view bytes,
                          const UnknownFieldHandler& on_unknown, v1::TokenizeRequest* request) {
  QUIRE_RETURN_IF_ERROR(body.Text("model", request->mutable_model()));
  QUIRE_RETURN_IF_ERROR(
      body.Bool("add_special_tokens", [&](bool v) { request->set_add_special_tokens(v); }));
  if (!body.Find("messages")) {
    if (body.Find("prompt")) {
      return body.Text("prompt", [&](std::string text) { request->set_text(std::move(text)); });
    }
    return WithReason(absl::InvalidArgumentError("prompt is missing; send prompt or messages"),
                      Reason::kPromptMissing, {{"field", "prompt"}});
  }
  if (const auto prompt = body.Find("prompt")) {
    return BadField(*prompt, "cannot be combined with messages");
  }
  if (request->add_special_tokens()) {
    return BadField(*body.Find("add_special_tokens"),
                    "must be false with messages, because the chat template writes these tokens");
  }
  QUIRE_RETURN_IF_ERROR(CheckElements(body, "messages", kMessage, on_unknown));
  QUIRE_RETURN_IF_ERROR(CheckElements(body, "tools", kTool, on_unknown));
  FieldNames names;
  return ReadChatPrompt(body, bytes, request->mutable_chat(), &names);
}

// Appends JSON text directly instead of building JSON values, since there may be millions of
// tokens.
std::string TokenizeAnswer(const v1::TokenizeResponse& response, const text::Tokenizer& tokenizer,
                           bool with_strings) {
  const auto& ids = response.token_ids();
  std::string body =
      absl::StrCat("{\"count\":", ids.size(), ",\"max_model_len\":", response.max_context_tokens(),
                   ",\"tokens\":[", absl::StrJoin(ids, ","), "],\"token_strs\":");
  if (!with_strings) return absl::StrCat(body, "null}");
  const auto quote = [&tokenizer](std::string* out, std::int32_t id) {
    absl::StrAppend(out, JsonQuoted(tokenizer.TokenBytes(id)));
  };
  absl::StrAppend(&body, "[", absl::StrJoin(ids, ",", quote), "]}");
  return body;
}

absl::StatusOr<EvaluationPlan> ReadTokenizeBody(const EvaluationBodyContext& context,
                                                absl::string_view bytes) {
  QUIRE_ASSIGN_OR_RETURN(const formats::JsonDocument document,
                         ParseBody(bytes, TokenizationFields(), kTokenizeBody, context.limits));
  const JsonFields body(document.root());
  bool with_strings = false;
  QUIRE_RETURN_IF_ERROR(body.Bool("return_token_strs", &with_strings));
  v1::TokenizeRequest request;
  QUIRE_RETURN_IF_ERROR(ReadTokenize(body, bytes, context.limits.on_unknown_field, &request));
  v1::TokenizeResponse response;
  QUIRE_RETURN_IF_ERROR(
      Tokenize(context.served, context.max_input_bytes, context.wall_now, request, &response));
  if (with_strings) {
    QUIRE_RETURN_IF_ERROR(
        CheckTokenTexts(static_cast<std::size_t>(response.token_ids_size()), "return_token_strs"));
  }
  EvaluationPlan plan;
  plan.answer =
      [response = std::move(response), tokenizer = context.served.tokenizer,
       with_strings](const std::vector<EvaluationResult>&) -> absl::StatusOr<std::string> {
    return TokenizeAnswer(response, *tokenizer, with_strings);
  };
  return plan;
}

absl::StatusOr<EvaluationPlan> ReadDetokenizeBody(const EvaluationBodyContext& context,
                                                  absl::string_view bytes) {
  QUIRE_ASSIGN_OR_RETURN(const formats::JsonDocument document,
                         ParseBody(bytes, TokenizationFields(), kDetokenizeBody, context.limits));
  const JsonFields body(document.root());
  v1::DetokenizeRequest request;
  QUIRE_RETURN_IF_ERROR(body.Text("model", request.mutable_model()));
  const auto tokens = body.Find("tokens");
  if (!tokens) {
    return WithReason(absl::InvalidArgumentError("tokens is missing; send a list of token ids"),
                      Reason::kBadParameter, {{"field", "tokens"}});
  }
  QUIRE_RETURN_IF_ERROR(
      ReadTokenIds(*tokens, /*min=*/0, [&](std::int32_t id) { request.add_token_ids(id); }));
  v1::DetokenizeResponse response;
  const absl::Status status = Detokenize(context.served, request, &response);
  if (absl::IsInvalidArgument(status)) {
    return WithReason(absl::InvalidArgumentError(absl::StrCat("tokens: ", status.message())),
                      Reason::kBadTokenId, {{"field", "tokens"}});
  }
  QUIRE_RETURN_IF_ERROR(status);
  EvaluationPlan plan;
  plan.answer = [text = std::move(*response.mutable_text())](
                    const std::vector<EvaluationResult>&) -> absl::StatusOr<std::string> {
    return JsonText(ordered_json{{"prompt", text}});
  };
  return plan;
}

absl::StatusOr<HttpAnswer> Version(const InfoContext& context, const HttpRequest&) {
  return JsonAnswer({{"version", context.server.version}});
}

absl::StatusOr<HttpAnswer> Ping(const InfoContext& context, const HttpRequest&) {
  return ReadinessAnswer(*context.handlers.state);
}

absl::StatusOr<HttpAnswer> Load(const InfoContext& context, const HttpRequest&) {
  QUIRE_ASSIGN_OR_RETURN(const ServedModel* served, context.handlers.state->ModelOrError());
  const engine::EngineStats stats = served->engine->GetStats();
  return JsonAnswer({{"server_load", stats.running + stats.waiting}});
}

constexpr EvaluationEndpoint kCalls[] = {
    {"/tokenize", "Tokenize", &ReadTokenizeBody, {&TokenizationFields, kTokenizeBody}},
    {"/detokenize", "Detokenize", &ReadDetokenizeBody, {&TokenizationFields, kDetokenizeBody}}};

constexpr InfoEndpoint kInfo[] = {
    {.path = "/version", .summary = "The version of the server.", .answer = &Version},
    {.path = "/ping",
     .summary = "Status 200 if the server accepts requests, otherwise 503 with the reason.",
     .answer = &Ping,
     .scope = std::nullopt,
     .allows_post = true},
    {.path = "/load", .summary = "The number of requests that run or wait.", .answer = &Load}};

}  // namespace

EndpointTables VllmTables() {
  return {.evaluation = kCalls, .info = kInfo};
}

}  // namespace quire::server
