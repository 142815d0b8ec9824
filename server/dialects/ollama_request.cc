#include "server/dialects/ollama_request.h"

#include <cstddef>
#include <deque>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "base/status.h"
#include "formats/raw_json.h"
#include "server/dialects/dialect_fields.h"
#include "server/openai/json_fields.h"

namespace quire::server {
namespace {

using formats::JsonValue;

constexpr std::uint32_t kBodies = kOllamaGenerate | kOllamaChat;
constexpr absl::string_view kTextOnly = "the model reads and writes text only";
constexpr absl::string_view kFixedSamplers = "remove it; top_k, top_p and min_p are supported";

constexpr RequestField kFields[] = {
    Supported("model", kBodies | kOllamaShow),
    Supported("name", kOllamaShow),
    Supported("prompt", kOllamaGenerate),
    Supported("system", kOllamaGenerate),
    Supported("raw", kOllamaGenerate),
    Supported("messages", kOllamaChat, kOllamaMessage),
    Supported("tools", kOllamaChat),
    Supported("format", kBodies),
    Supported("think", kBodies),
    Supported("stream", kBodies),
    Supported("logprobs", kBodies),
    Supported("top_logprobs", kBodies),
    Supported("options", kBodies, kOllamaOptions),
    // The model stays loaded, even if keep_alive is 0.
    NoMeaning("keep_alive", kBodies, kNumber | kString),
    NoMeaning("verbose", kOllamaShow, kBoolean),
    Refused("suffix", kOllamaGenerate,
            "write the insertion format of the model as the prompt and set raw to true", R"([""])"),
    Refused("template", kOllamaGenerate | kOllamaShow,
            "set chat.template_file of the configuration to a Jinja template", R"([""])"),
    Refused("system", kOllamaShow, "send it with each call", R"([""])"),
    Refused("options", kOllamaShow, "send them with each call", "[{}]"),
    Refused("context", kOllamaGenerate, "send the conversation to /api/chat", "[[]]"),
    Refused("images", kOllamaGenerate | kOllamaMessage, kTextOnly, "[[]]"),
    Refused("width", kOllamaGenerate, kTextOnly, "[0]"),
    Refused("height", kOllamaGenerate, kTextOnly, "[0]"),
    Refused("steps", kOllamaGenerate, kTextOnly, "[0]"),

    Supported("temperature", kOllamaOptions),
    Supported("top_k", kOllamaOptions),
    Supported("top_p", kOllamaOptions),
    Supported("min_p", kOllamaOptions),
    Supported("seed", kOllamaOptions),
    Supported("num_predict", kOllamaOptions),
    Supported("stop", kOllamaOptions),
    Supported("repeat_penalty", kOllamaOptions),
    Supported("presence_penalty", kOllamaOptions),
    Supported("frequency_penalty", kOllamaOptions),
    // The configuration decides how the model is loaded, and the context is never shifted.
    NoMeaning("num_ctx", kOllamaOptions, kNumber),
    NoMeaning("num_keep", kOllamaOptions, kNumber),
    NoMeaning("num_batch", kOllamaOptions, kNumber),
    NoMeaning("num_gpu", kOllamaOptions, kNumber),
    NoMeaning("main_gpu", kOllamaOptions, kNumber),
    NoMeaning("num_thread", kOllamaOptions, kNumber),
    NoMeaning("numa", kOllamaOptions, kBoolean),
    NoMeaning("low_vram", kOllamaOptions, kBoolean),
    NoMeaning("f16_kv", kOllamaOptions, kBoolean),
    NoMeaning("logits_all", kOllamaOptions, kBoolean),
    NoMeaning("vocab_only", kOllamaOptions, kBoolean),
    NoMeaning("use_mmap", kOllamaOptions, kBoolean),
    NoMeaning("use_mlock", kOllamaOptions, kBoolean),
    NoMeaning("embedding_only", kOllamaOptions, kBoolean),
    Refused("repeat_last_n", kOllamaOptions, "the penalties read all tokens", "[-1]"),
    Refused("penalize_newline", kOllamaOptions, "the penalties read all tokens", "[true]"),
    Refused("typical_p", kOllamaOptions, kFixedSamplers, "[1]"),
    Refused("tfs_z", kOllamaOptions, kFixedSamplers, "[1]"),
    Refused("mirostat", kOllamaOptions, kFixedSamplers, "[0]"),
    Refused("mirostat_tau", kOllamaOptions, kFixedSamplers, "[5]"),
    Refused("mirostat_eta", kOllamaOptions, kFixedSamplers, "[0.1]"),

    Supported("role", kOllamaMessage),
    Supported("content", kOllamaMessage),
    Supported("thinking", kOllamaMessage),
    Supported("tool_calls", kOllamaMessage, kOllamaToolCall),
    Supported("tool_name", kOllamaMessage),
    Supported("tool_call_id", kOllamaMessage),
    Supported("id", kOllamaToolCall),
    Supported("function", kOllamaToolCall, kOllamaFunction),
    NoMeaning("type", kOllamaToolCall, kString),
    Supported("name", kOllamaFunction),
    Supported("arguments", kOllamaFunction),
    NoMeaning("index", kOllamaFunction, kNumber),
};

absl::Status ReadStops(const JsonFields& options, v1::StoppingParams* stopping) {
  const auto stop = options.Find("stop");
  if (!stop) return absl::OkStatus();
  if (stop->is_string()) {
    return options.Text("stop", stopping->add_stop());
  }
  if (!stop->is_array()) return BadField(*stop, "must be a string or a list of strings");
  return ReadStrings(*stop, [&](std::string text) { stopping->add_stop(std::move(text)); });
}

absl::Status ReadOptions(const JsonFields& body, const OpenAiLimits& limits,
                         v1::GenerateRequest* request) {
  const auto value = body.Find("options");
  if (!value) return absl::OkStatus();
  if (!value->is_object()) return BadField(*value, "must be an object");
  const JsonFields options(*value);
  v1::SamplingParams* const sampling = request->mutable_sampling();
  QUIRE_RETURN_IF_ERROR(
      options.Float("temperature", [&](float v) { sampling->set_temperature(v); }));
  QUIRE_RETURN_IF_ERROR(options.Float("top_p", [&](float v) { sampling->set_top_p(v); }));
  QUIRE_RETURN_IF_ERROR(options.Float("min_p", [&](float v) { sampling->set_min_p(v); }));
  QUIRE_RETURN_IF_ERROR(
      options.Int32("top_k", [&](std::int32_t v) { sampling->set_top_k(v == -1 ? 0 : v); }));
  QUIRE_RETURN_IF_ERROR(
      options.Float("repeat_penalty", [&](float v) { sampling->set_repetition_penalty(v); }));
  QUIRE_RETURN_IF_ERROR(
      options.Float("presence_penalty", [&](float v) { sampling->set_presence_penalty(v); }));
  QUIRE_RETURN_IF_ERROR(
      options.Float("frequency_penalty", [&](float v) { sampling->set_frequency_penalty(v); }));
  // -1 is Ollama's default and means a random seed.
  QUIRE_RETURN_IF_ERROR(options.Int64("seed", [&](std::int64_t v) {
    if (v != -1) sampling->set_seed(v);
  }));
  // -1 and -2 both mean to generate until the context is full.
  QUIRE_RETURN_IF_ERROR(options.Int32("num_predict", [&](std::int32_t v) {
    request->mutable_stopping()->set_max_tokens(v == -1 || v == -2 ? limits.max_tokens : v);
  }));
  return ReadStops(options, request->mutable_stopping());
}

absl::Status ReadFormat(const JsonFields& body, absl::string_view bytes,
                        v1::GenerateRequest* request) {
  const auto format = body.Find("format");
  if (!format || format->raw() == "") return absl::OkStatus();
  if (format->raw() == "json") {
    request->mutable_constraint()->mutable_json_object();
    return absl::OkStatus();
  }
  if (!format->is_object()) return BadField(*format, "must be \"json\" or a JSON schema");
  // The schema keeps the order of its keys, because answers have that order.
  request->mutable_constraint()->set_json_schema(CompactJson(formats::RawMember(bytes, "format")));
  return absl::OkStatus();
}

absl::Status ReadLogprobs(const JsonFields& body, v1::OutputOptions* output,
                          OpenAiRequest* result) {
  QUIRE_RETURN_IF_ERROR(body.Bool("logprobs", &result->logprobs));
  if (result->logprobs) output->set_logprobs(0);
  std::int32_t top = 0;
  QUIRE_RETURN_IF_ERROR(body.Int32("top_logprobs", &top));
  if (top == 0) return absl::OkStatus();
  if (!result->logprobs) return BadField(*body.Find("top_logprobs"), "needs logprobs to be true");
  output->set_logprobs(top);
  return absl::OkStatus();
}

// Reads the field `think`, which sets variables of the template.
absl::Status ReadThink(const JsonFields& body, v1::ChatPrompt* chat) {
  const auto think = body.Find("think");
  if (!think) return absl::OkStatus();
  auto& variables = *chat->mutable_template_vars()->mutable_fields();
  if (think->raw().is_boolean()) {
    variables["enable_thinking"].set_bool_value(think->raw().get<bool>());
    return absl::OkStatus();
  }
  for (const char* const effort : {"low", "medium", "high", "max"}) {
    if (think->raw() != effort) continue;
    variables["enable_thinking"].set_bool_value(true);
    variables["reasoning_effort"].set_string_value(effort);
    return absl::OkStatus();
  }
  return BadField(*think, "must be true, false, low, medium, high or max");
}

// Reads the fields that both calls share.
absl::Status ReadShared(const JsonFields& body, absl::string_view bytes, const OpenAiLimits& limits,
                        v1::GenerateRequest* request, OpenAiRequest* result) {
  QUIRE_RETURN_IF_ERROR(body.Text("model", [&](const std::string& name) {
    request->set_model(std::string(OllamaModelName(name)));
  }));
  QUIRE_RETURN_IF_ERROR(ReadOptions(body, limits, request));
  QUIRE_RETURN_IF_ERROR(ReadFormat(body, bytes, request));
  result->stream = true;
  QUIRE_RETURN_IF_ERROR(body.Bool("stream", &result->stream));
  v1::OutputOptions* const output = request->mutable_output();
  QUIRE_RETURN_IF_ERROR(ReadLogprobs(body, output, result));
  output->set_text(true);
  output->set_stream(result->stream);
  output->set_timings(true);
  FieldNames* const names = &result->names;
  names->Set("sampling", "options");
  names->Set("sampling.repetition_penalty", "options.repeat_penalty");
  names->Set("stopping", "options");
  names->Set("stopping.max_tokens", "options.num_predict");
  names->Set("output.logprobs", "top_logprobs");
  names->SetConstraint("format");
  return absl::OkStatus();
}

// `raw` is the call's text in the body.
absl::Status ReadToolCall(const JsonValue& call, absl::string_view raw, v1::ToolCall* message) {
  if (!call.is_object()) return BadField(call, "must be an object");
  QUIRE_RETURN_IF_ERROR(JsonFields(call).Text("id", message->mutable_id()));
  const auto function = call.FindNonNull("function");
  if (!function) return MissingMember(call, "function");
  if (!function->is_object()) return BadField(*function, "must be an object");
  QUIRE_ASSIGN_OR_RETURN(*message->mutable_name(), RequiredText(*function, "name"));
  const auto arguments = function->FindNonNull("arguments");
  if (!arguments) {
    message->set_arguments_json("{}");
    return absl::OkStatus();
  }
  if (!arguments->is_object()) return BadField(*arguments, "must be an object");
  message->set_arguments_json(
      std::string(formats::RawMember(formats::RawMember(raw, "function"), "arguments")));
  return absl::OkStatus();
}

absl::Status ReadMessage(const JsonValue& value, absl::string_view raw, v1::ChatMessage* message) {
  if (!value.is_object()) return BadField(value, "must be an object");
  const JsonFields fields(value);
  QUIRE_ASSIGN_OR_RETURN(*message->mutable_role(), RequiredText(value, "role"));
  QUIRE_RETURN_IF_ERROR(fields.Text("content", message->mutable_content()));
  QUIRE_RETURN_IF_ERROR(fields.Text("thinking", message->mutable_reasoning_content()));
  QUIRE_RETURN_IF_ERROR(fields.Text("tool_name", message->mutable_name()));
  QUIRE_RETURN_IF_ERROR(fields.Text("tool_call_id", message->mutable_tool_call_id()));
  const auto calls = fields.Find("tool_calls");
  if (!calls) return absl::OkStatus();
  QUIRE_RETURN_IF_ERROR(CheckArray(*calls));
  const std::vector<absl::string_view> texts =
      formats::RawElements(formats::RawMember(raw, "tool_calls"));
  for (std::size_t i = 0; i < calls->size(); ++i) {
    QUIRE_RETURN_IF_ERROR(ReadToolCall(calls->At(i), texts[i], message->add_tool_calls()));
  }
  return absl::OkStatus();
}

// The tool calls of a conversation that no message has answered yet, in the order of the calls.
class OpenCallList {
 public:
  void Add(const v1::ToolCall& call) {
    by_name_[call.name()].push_back(ids_.size());
    ids_.push_back(call.id());
    is_open_.push_back(true);
  }

  // Closes the first open call with this name, or the first open call if the name is empty, and
  // returns its id. Returns "" if there is none. Takes constant time on average, because clients
  // choose the number of calls.
  std::string Take(const std::string& name) {
    if (name.empty()) {
      while (first_open_ < ids_.size() && !is_open_[first_open_]) ++first_open_;
      return Close(first_open_);
    }
    std::deque<std::size_t>& calls = by_name_[name];
    while (!calls.empty() && !is_open_[calls.front()]) calls.pop_front();
    return Close(calls.empty() ? ids_.size() : calls.front());
  }

 private:
  std::string Close(std::size_t call) {
    if (call == ids_.size()) return "";
    is_open_[call] = false;
    return std::move(ids_[call]);
  }

  std::vector<std::string> ids_;
  std::vector<bool> is_open_;
  std::size_t first_open_ = 0;  // all calls before it are closed
  absl::flat_hash_map<std::string, std::deque<std::size_t>> by_name_;
};

// Sets the ids of tool calls without an id, and the tool_call_id of the messages of role `tool`
// that answer them. Ollama's clients usually send no ids, but templates may need them.
void PairToolCalls(v1::ChatPrompt* chat) {
  OpenCallList open;
  std::int32_t count = 0;
  for (v1::ChatMessage& message : *chat->mutable_messages()) {
    for (v1::ToolCall& call : *message.mutable_tool_calls()) {
      // Mistral's templates require ids of nine characters.
      if (call.id().empty()) call.set_id(absl::StrFormat("call%05d", count++));
      open.Add(call);
    }
    if (message.role() != "tool" || !message.tool_call_id().empty()) continue;
    message.set_tool_call_id(open.Take(message.name()));
  }
}

absl::Status ReadTools(const JsonFields& body, absl::string_view bytes, v1::ChatPrompt* chat) {
  const auto tools = body.Find("tools");
  if (!tools) return absl::OkStatus();
  QUIRE_RETURN_IF_ERROR(CheckArray(*tools));
  for (const absl::string_view raw : formats::RawElements(formats::RawMember(bytes, "tools"))) {
    chat->add_tools()->set_tool_json(std::string(raw));
  }
  return absl::OkStatus();
}

// Converts the fields `system` and `prompt` to a chat.
absl::Status ReadPromptAsChat(const JsonFields& body, v1::GenerateRequest* request,
                              FieldNames* names) {
  v1::ChatPrompt* const chat = request->mutable_chat();
  QUIRE_RETURN_IF_ERROR(body.Text("system", [&](std::string text) {
    if (text.empty()) return;
    v1::ChatMessage* const message = chat->add_messages();
    message->set_role("system");
    message->set_content(std::move(text));
  }));
  v1::ChatMessage* const message = chat->add_messages();
  message->set_role("user");
  QUIRE_RETURN_IF_ERROR(body.Text("prompt", message->mutable_content()));
  names->Set("chat.messages", "prompt");
  request->mutable_output()->set_parse(true);
  return ReadThink(body, chat);
}

}  // namespace

const FieldTable& OllamaFields() {
  static const auto* const kTable = new FieldTable(kFields);
  return *kTable;
}

absl::string_view OllamaModelName(absl::string_view name) {
  return absl::StripSuffix(name, ":latest");
}

absl::StatusOr<OpenAiRequest> ReadOllamaGenerate(absl::string_view bytes,
                                                 const OpenAiLimits& limits) {
  QUIRE_ASSIGN_OR_RETURN(const formats::JsonDocument document,
                         ParseBody(bytes, OllamaFields(), kOllamaGenerate, limits));
  const JsonFields body(document.root());
  OpenAiRequest result;
  v1::GenerateRequest request;
  QUIRE_RETURN_IF_ERROR(ReadShared(body, bytes, limits, &request, &result));
  std::string prompt;
  QUIRE_RETURN_IF_ERROR(body.Text("prompt", &prompt));
  if (prompt.empty()) {
    return WithReason(
        absl::InvalidArgumentError("prompt is empty; no call is needed to load the model"),
        Reason::kPromptMissing, {{"field", "prompt"}});
  }
  bool is_raw = false;
  QUIRE_RETURN_IF_ERROR(body.Bool("raw", &is_raw));
  if (is_raw || !limits.has_chat_template) {
    for (const char* const key : {"system", "think"}) {
      const auto value = body.Find(key);
      if (!value || value->raw() == "" || value->raw() == false) continue;
      return BadField(*value, is_raw ? "cannot be combined with raw; write it into the prompt"
                                     : "needs a chat template, which the model does not have");
    }
    request.set_text(std::move(prompt));
  } else {
    QUIRE_RETURN_IF_ERROR(ReadPromptAsChat(body, &request, &result.names));
  }
  result.prompts.push_back(std::move(request));
  return result;
}

absl::StatusOr<OpenAiRequest> ReadOllamaChat(absl::string_view bytes, const OpenAiLimits& limits) {
  QUIRE_ASSIGN_OR_RETURN(const formats::JsonDocument document,
                         ParseBody(bytes, OllamaFields(), kOllamaChat, limits));
  const JsonFields body(document.root());
  OpenAiRequest result;
  result.is_chat = true;
  v1::GenerateRequest request;
  QUIRE_RETURN_IF_ERROR(ReadShared(body, bytes, limits, &request, &result));
  const auto messages = body.Find("messages");
  if (!messages || (messages->is_array() && messages->size() == 0)) {
    return WithReason(
        absl::InvalidArgumentError("messages is empty; no call is needed to load the model"),
        Reason::kPromptMissing, {{"field", "messages"}});
  }
  QUIRE_RETURN_IF_ERROR(CheckArray(*messages));
  v1::ChatPrompt* const chat = request.mutable_chat();
  const std::vector<absl::string_view> raw =
      formats::RawElements(formats::RawMember(bytes, "messages"));
  for (std::size_t i = 0; i < messages->size(); ++i) {
    QUIRE_RETURN_IF_ERROR(ReadMessage(messages->At(i), raw[i], chat->add_messages()));
  }
  PairToolCalls(chat);
  QUIRE_RETURN_IF_ERROR(ReadTools(body, bytes, chat));
  QUIRE_RETURN_IF_ERROR(ReadThink(body, chat));
  result.names.Set("prompt", "messages");
  request.mutable_output()->set_parse(true);
  result.prompts.push_back(std::move(request));
  return result;
}

}  // namespace quire::server
