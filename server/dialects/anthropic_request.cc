#include "server/dialects/anthropic_request.h"

#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "formats/raw_json.h"
#include "quire/v1/text.pb.h"
#include "server/api/tokenization.h"
#include "server/dialects/dialect_fields.h"
#include "server/openai/json_fields.h"

namespace quire::server {
namespace {

using formats::JsonValue;

// The objects whose members the table lists, as bits.
enum Owner : std::uint32_t {
  kBody = kAnthropicBody,
  kMetadata = 1U << 1,
  kThinking = 1U << 2,
  kOutputConfig = 1U << 3,
  kFormat = 1U << 4,
  kMessage = 1U << 5,
  kTextBlock = 1U << 6,
  kThinkingBlock = 1U << 7,
  kToolUse = 1U << 8,
  kToolResult = 1U << 9,
  kTool = 1U << 10,
  kToolChoice = 1U << 11,
};

constexpr std::uint32_t kBlocks = kTextBlock | kThinkingBlock | kToolUse | kToolResult;
constexpr absl::string_view kTextOnly = "the model reads text only; use blocks of type text";
constexpr absl::string_view kCallsAreDirect = "the client runs all tools; remove it";

constexpr RequestField kFields[] = {
    Supported("model", kBody),
    Supported("max_tokens", kBody),
    Supported("messages", kBody),
    Supported("system", kBody),
    Supported("tools", kBody),
    Supported("tool_choice", kBody, kToolChoice),
    Supported("stop_sequences", kBody),
    Supported("temperature", kBody),
    Supported("top_p", kBody),
    Supported("top_k", kBody),
    Supported("metadata", kBody, kMetadata),
    Supported("thinking", kBody, kThinking),
    Supported("output_config", kBody, kOutputConfig),
    Supported("stream", kBody),
    // Fields without meaning: the answer has the same text with and without them.
    NoMeaning("cache_control", kBody | kBlocks | kTool, kObject),
    NoMeaning("service_tier", kBody, kString),
    NoMeaning("inference_geo", kBody, kString),
    NoMeaning("user_profile_id", kBody, kString),
    NoMeaning("workspace_id", kBody, kString),
    NoMeaning("diagnostics", kBody, kObject),
    Refused("speed", kBody, "remove it", R"(["standard"])"),
    Refused("container", kBody, kCallsAreDirect),
    Refused("mcp_servers", kBody, kCallsAreDirect, "[[]]"),
    Refused("context_management", kBody, "shorten the messages"),
    Refused("output_format", kBody, "use output_config.format"),

    Supported("user_id", kMetadata),
    Supported("type", kThinking | kFormat | kBlocks | kTool | kToolChoice),
    Supported("budget_tokens", kThinking),
    Refused("display", kThinking, "ignore the thinking blocks of the answer", R"(["summarized"])"),
    Supported("effort", kOutputConfig),
    Supported("format", kOutputConfig, kFormat),
    Refused("task_budget", kOutputConfig, "use max_tokens"),
    Supported("schema", kFormat),
    // Messages and their blocks.
    Supported("role", kMessage),
    Supported("content", kMessage | kToolResult),
    Supported("text", kTextBlock),
    NoMeaning("citations", kTextBlock, kArray),
    Supported("thinking", kThinkingBlock),
    NoMeaning("signature", kThinkingBlock, kString),
    Supported("id", kToolUse),
    Supported("name", kToolUse | kTool | kToolChoice),
    Supported("input", kToolUse),
    Supported("tool_use_id", kToolResult),
    NoMeaning("is_error", kToolResult, kBoolean),  // the content describes the error
    Refused("caller", kToolUse, kCallsAreDirect, R"([{"type": "direct"}])"),
    Refused("toolset_name", kToolUse | kToolResult, "use custom tools"),
    // Tools.
    Supported("description", kTool),
    Supported("input_schema", kTool),
    Supported("strict", kTool),
    NoMeaning("eager_input_streaming", kTool, kBoolean),
    Refused("input_examples", kTool, "write the examples into the description", "[[]]"),
    Refused("allowed_callers", kTool, kCallsAreDirect, R"([["direct"]])"),
    Refused("defer_loading", kTool, "send only the tools of this turn", "[false]"),
    Supported("disable_parallel_tool_use", kToolChoice),
};

absl::Status Check(const JsonValue& object, Owner owner, const OpenAiLimits& limits) {
  return CheckFields(AnthropicFields(), object, owner, limits.on_unknown_field);
}

// Converts `system` and `messages`.
class MessageReader {
 public:
  MessageReader(const OpenAiLimits& limits, v1::ChatPrompt* chat, FieldNames* names)
      : limits_(limits), chat_(chat), names_(names) {}

  absl::Status ReadSystem(const JsonValue& system) {
    v1::ChatMessage* const message = AddMessage("system", system.path());
    return ReadTexts(system, message);
  }

  // `raw` is the message's text in the body.
  absl::Status Read(const JsonValue& message, absl::string_view raw) {
    QUIRE_RETURN_IF_ERROR(CheckObject(message));
    QUIRE_RETURN_IF_ERROR(Check(message, kMessage, limits_));
    QUIRE_ASSIGN_OR_RETURN(const std::string role, RequiredText(message, "role"));
    if (role != "user" && role != "assistant" && role != "system") {
      return BadField(*message.FindNonNull("role"), "must be user, assistant or system");
    }
    const auto content = message.FindNonNull("content");
    if (!content) return MissingMember(message, "content");
    if (!content->is_array() || content->size() == 0) {
      return ReadTexts(*content, OpenMessage(role, message.path()));
    }
    const std::vector<absl::string_view> blocks =
        formats::RawElements(formats::RawMember(raw, "content"));
    for (std::size_t i = 0; i < content->size(); ++i) {
      QUIRE_RETURN_IF_ERROR(ReadBlock(content->At(i), blocks[i], role));
    }
    return absl::OkStatus();
  }

 private:
  // Adds a message. Errors about it name the field `path`.
  v1::ChatMessage* AddMessage(absl::string_view role, const std::string& path) {
    names_->Set(absl::StrCat("chat.messages[", chat_->messages_size(), "]"), path);
    v1::ChatMessage* const message = chat_->add_messages();
    message->set_role(std::string(role));
    return message;
  }

  // Returns the last message if it has this role, or a new one.
  v1::ChatMessage* OpenMessage(absl::string_view role, const std::string& path) {
    if (!chat_->messages().empty()) {
      v1::ChatMessage* const last = chat_->mutable_messages(chat_->messages_size() - 1);
      if (last->role() == role) return last;
    }
    return AddMessage(role, path);
  }

  // Reads text, or a list of text blocks.
  absl::Status ReadTexts(const JsonValue& content, v1::ChatMessage* message) {
    if (content.is_string()) {
      QUIRE_ASSIGN_OR_RETURN(*message->add_parts()->mutable_text(), content.AsString());
      return absl::OkStatus();
    }
    if (!content.is_array()) return BadField(content, "must be a string or a list of blocks");
    for (std::size_t i = 0; i < content.size(); ++i) {
      const JsonValue block = content.At(i);
      QUIRE_ASSIGN_OR_RETURN(const std::string type, TypeOf(block));
      if (type != "text") return UnsupportedType(block, type, kTextOnly);
      QUIRE_RETURN_IF_ERROR(ReadText(block, message));
    }
    return absl::OkStatus();
  }

  absl::Status ReadText(const JsonValue& block, v1::ChatMessage* message) {
    QUIRE_RETURN_IF_ERROR(Check(block, kTextBlock, limits_));
    QUIRE_ASSIGN_OR_RETURN(*message->add_parts()->mutable_text(), RequiredText(block, "text"));
    return absl::OkStatus();
  }

  absl::Status ReadBlock(const JsonValue& block, absl::string_view raw, const std::string& role) {
    QUIRE_ASSIGN_OR_RETURN(const std::string type, TypeOf(block));
    if (type == "text") return ReadText(block, OpenMessage(role, block.path()));
    if (role == "user" && type == "tool_result") return ReadToolResult(block);
    if (role != "assistant") return UnsupportedType(block, type, kTextOnly);
    if (type == "thinking") {
      QUIRE_RETURN_IF_ERROR(Check(block, kThinkingBlock, limits_));
      QUIRE_ASSIGN_OR_RETURN(const std::string text, RequiredText(block, "thinking"));
      v1::ChatMessage* const message = OpenMessage(role, block.path());
      absl::StrAppend(message->mutable_reasoning_content(),
                      message->reasoning_content().empty() ? "" : "\n", text);
      return absl::OkStatus();
    }
    if (type == "tool_use") return ReadToolUse(block, raw);
    return UnsupportedType(block, type, "use blocks of type text, thinking and tool_use");
  }

  absl::Status ReadToolUse(const JsonValue& block, absl::string_view raw) {
    QUIRE_RETURN_IF_ERROR(Check(block, kToolUse, limits_));
    v1::ChatMessage* const message = OpenMessage("assistant", block.path());
    const int index = message->tool_calls_size();
    v1::ToolCall* const call = message->add_tool_calls();
    names_->Set(
        absl::StrCat("chat.messages[", chat_->messages_size() - 1, "].tool_calls[", index, "]"),
        block.path());
    QUIRE_ASSIGN_OR_RETURN(*call->mutable_id(), RequiredText(block, "id"));
    QUIRE_ASSIGN_OR_RETURN(*call->mutable_name(), RequiredText(block, "name"));
    const auto input = block.FindNonNull("input");
    if (!input) return MissingMember(block, "input");
    QUIRE_RETURN_IF_ERROR(CheckObject(*input));
    call->set_arguments_json(std::string(formats::RawMember(raw, "input")));
    return absl::OkStatus();
  }

  absl::Status ReadToolResult(const JsonValue& block) {
    QUIRE_RETURN_IF_ERROR(Check(block, kToolResult, limits_));
    v1::ChatMessage* const message = AddMessage("tool", block.path());
    QUIRE_ASSIGN_OR_RETURN(*message->mutable_tool_call_id(), RequiredText(block, "tool_use_id"));
    const auto content = block.FindNonNull("content");
    return content ? ReadTexts(*content, message) : absl::OkStatus();
  }

  const OpenAiLimits& limits_;
  v1::ChatPrompt* const chat_;
  FieldNames* const names_;
};

absl::Status ReadMessages(const JsonFields& body, absl::string_view bytes,
                          const OpenAiLimits& limits, v1::ChatPrompt* chat, FieldNames* names) {
  MessageReader reader(limits, chat, names);
  if (const auto system = body.Find("system")) {
    QUIRE_RETURN_IF_ERROR(reader.ReadSystem(*system));
  }
  const auto messages = body.Find("messages");
  if (!messages) return MissingInput("messages");
  QUIRE_RETURN_IF_ERROR(CheckArray(*messages));
  const std::vector<absl::string_view> raw =
      formats::RawElements(formats::RawMember(bytes, "messages"));
  for (std::size_t i = 0; i < messages->size(); ++i) {
    QUIRE_RETURN_IF_ERROR(reader.Read(messages->At(i), raw[i]));
  }
  if (chat->messages().empty()) return absl::OkStatus();  // refused later
  const v1::ChatMessage& last = chat->messages(chat->messages_size() - 1);
  chat->set_continue_final_message(last.role() == "assistant" && last.tool_calls().empty());
  return absl::OkStatus();
}

// `raw` is the tool's text in the body.
absl::Status ReadTool(const JsonValue& tool, absl::string_view raw, const OpenAiLimits& limits,
                      v1::ToolSpec* spec) {
  QUIRE_ASSIGN_OR_RETURN(const std::string type, TypeOf(tool, "custom"));
  if (type != "custom") {
    return UnsupportedType(tool, type, "describe the tool by input_schema, without a type");
  }
  QUIRE_RETURN_IF_ERROR(Check(tool, kTool, limits));
  const JsonFields fields(tool);
  QUIRE_ASSIGN_OR_RETURN(*spec->mutable_name(), RequiredText(tool, "name"));
  QUIRE_RETURN_IF_ERROR(fields.Text("description", spec->mutable_description()));
  QUIRE_RETURN_IF_ERROR(fields.Bool("strict", [&](bool strict) { spec->set_strict(strict); }));
  const auto schema = fields.Find("input_schema");
  if (!schema) return MissingMember(tool, "input_schema");
  QUIRE_RETURN_IF_ERROR(CheckObject(*schema));
  spec->set_parameters_json_schema(std::string(formats::RawMember(raw, "input_schema")));
  return absl::OkStatus();
}

absl::Status ReadToolChoice(const JsonValue& choice, v1::ChatPrompt* chat) {
  constexpr std::pair<absl::string_view, v1::ToolChoice> kChoices[] = {
      {"auto", v1::TOOL_CHOICE_AUTO},
      {"any", v1::TOOL_CHOICE_REQUIRED},
      {"tool", v1::TOOL_CHOICE_NAMED},
      {"none", v1::TOOL_CHOICE_NONE}};
  QUIRE_ASSIGN_OR_RETURN(const std::string type, TypeOf(choice));
  for (const auto& [name, value] : kChoices) {
    if (type == name) chat->set_tool_choice(value);
  }
  if (chat->tool_choice() == v1::TOOL_CHOICE_UNSPECIFIED) {
    return UnsupportedType(choice, type, "use auto, any, tool or none");
  }
  if (chat->tool_choice() == v1::TOOL_CHOICE_NAMED) {
    QUIRE_ASSIGN_OR_RETURN(*chat->mutable_tool_name(), RequiredText(choice, "name"));
  }
  return JsonFields(choice).Bool("disable_parallel_tool_use", [&](bool is_disabled) {
    chat->set_parallel_tool_calls(!is_disabled);
  });
}

absl::Status ReadTools(const JsonFields& body, absl::string_view bytes, const OpenAiLimits& limits,
                       v1::ChatPrompt* chat) {
  if (const auto choice = body.Find("tool_choice")) {
    QUIRE_RETURN_IF_ERROR(ReadToolChoice(*choice, chat));
  }
  const auto tools = body.Find("tools");
  if (!tools) return absl::OkStatus();
  QUIRE_RETURN_IF_ERROR(CheckArray(*tools));
  const std::vector<absl::string_view> raw =
      formats::RawElements(formats::RawMember(bytes, "tools"));
  for (std::size_t i = 0; i < tools->size(); ++i) {
    QUIRE_RETURN_IF_ERROR(ReadTool(tools->At(i), raw[i], limits, chat->add_tools()));
  }
  return absl::OkStatus();
}

// Passes `thinking` to the chat template as enable_thinking and thinking_budget.
absl::Status ReadThinking(const JsonFields& body, v1::ChatPrompt* chat) {
  const auto thinking = body.Find("thinking");
  if (!thinking) return absl::OkStatus();
  QUIRE_ASSIGN_OR_RETURN(const std::string type, TypeOf(*thinking));
  if (type != "enabled" && type != "disabled" && type != "adaptive") {
    return UnsupportedType(*thinking, type, "use enabled, disabled or adaptive");
  }
  const auto budget = thinking->FindNonNull("budget_tokens");
  if (budget && type != "enabled") {
    return BadField(*budget, absl::StrCat("cannot be combined with type ", type, "; remove it"));
  }
  if (type == "adaptive") return absl::OkStatus();
  auto& variables = *chat->mutable_template_vars()->mutable_fields();
  variables["enable_thinking"].set_bool_value(type == "enabled");
  if (!budget) return absl::OkStatus();
  const auto tokens = budget->AsInteger(1, std::numeric_limits<std::int32_t>::max());
  if (!tokens.ok()) return NameField(tokens.status(), *budget);
  variables["thinking_budget"].set_number_value(static_cast<double>(*tokens));
  return absl::OkStatus();
}

absl::Status ReadOutputConfig(const JsonFields& body, absl::string_view bytes,
                              v1::GenerateRequest* request, FieldNames* names) {
  const auto config = body.Find("output_config");
  if (!config) return absl::OkStatus();
  QUIRE_RETURN_IF_ERROR(CheckObject(*config));
  if (const auto effort = config->FindNonNull("effort")) {
    QUIRE_RETURN_IF_ERROR(SetReasoningEffort(*effort, request->mutable_chat()));
  }
  const auto format = config->FindNonNull("format");
  if (!format) return absl::OkStatus();
  QUIRE_ASSIGN_OR_RETURN(const std::string type, TypeOf(*format));
  if (type != "json_schema") return UnsupportedType(*format, type, "use json_schema");
  const auto schema = format->FindNonNull("schema");
  if (!schema) return MissingMember(*format, "schema");
  const absl::string_view raw = formats::RawMember(bytes, "output_config");
  return SetSchema(*schema, formats::RawMember(formats::RawMember(raw, "format"), "schema"),
                   request, names);
}

void SetNames(FieldNames* names) {
  constexpr std::pair<const char*, const char*> kNames[] = {
      {"prompt", "messages"},
      {"chat.template_vars", "thinking"},
      {"chat.tools[].name", "tools[].name"},
      {"chat.tools[].description", "tools[].description"},
      {"chat.tools[].parameters_json_schema", "tools[].input_schema"},
      {"chat.tools[].strict", "tools[].strict"},
      {"chat.tool_name", "tool_choice.name"},
      {"chat.continue_final_message", "messages"},
      {"chat.parallel_tool_calls", "tool_choice.disable_parallel_tool_use"},
      {"stopping.stop", "stop_sequences"},
      {"labels", "metadata.user_id"},
  };
  for (const auto& [ours, theirs] : kNames) names->Set(ours, theirs);
  names->SetConstraint("tools");
}

absl::Status ReadOptions(const JsonFields& body, v1::GenerateRequest* request,
                         OpenAiRequest* result) {
  QUIRE_RETURN_IF_ERROR(body.Text("model", request->mutable_model()));
  v1::StoppingParams* const stopping = request->mutable_stopping();
  QUIRE_RETURN_IF_ERROR(
      body.Int32("max_tokens", [&](std::int32_t v) { stopping->set_max_tokens(v); }));
  if (const auto stops = body.Find("stop_sequences")) {
    QUIRE_RETURN_IF_ERROR(
        ReadStrings(*stops, [&](std::string text) { stopping->add_stop(std::move(text)); }));
  }
  v1::SamplingParams* const sampling = request->mutable_sampling();
  QUIRE_RETURN_IF_ERROR(body.Float("temperature", [&](float v) { sampling->set_temperature(v); }));
  QUIRE_RETURN_IF_ERROR(body.Float("top_p", [&](float v) { sampling->set_top_p(v); }));
  QUIRE_RETURN_IF_ERROR(body.Int32("top_k", [&](std::int32_t v) { sampling->set_top_k(v); }));
  QUIRE_RETURN_IF_ERROR(body.Bool("stream", &result->stream));
  const auto metadata = body.Find("metadata");
  if (!metadata) return absl::OkStatus();
  QUIRE_RETURN_IF_ERROR(CheckObject(*metadata));
  return JsonFields(*metadata).Text("user_id", [&](std::string user) {
    (*request->mutable_labels())["user"] = TruncateLabel(std::move(user));
  });
}

// Reads a body. Its max_tokens may be absent.
absl::StatusOr<OpenAiRequest> ReadBody(absl::string_view bytes, const OpenAiLimits& limits) {
  QUIRE_ASSIGN_OR_RETURN(const formats::JsonDocument document,
                         ParseBody(bytes, AnthropicFields(), kBody, limits));
  const JsonFields body(document.root());
  OpenAiRequest result;
  result.is_chat = true;
  v1::GenerateRequest request;
  SetNames(&result.names);
  QUIRE_RETURN_IF_ERROR(ReadOptions(body, &request, &result));
  v1::ChatPrompt* const chat = request.mutable_chat();
  QUIRE_RETURN_IF_ERROR(ReadMessages(body, bytes, limits, chat, &result.names));
  QUIRE_RETURN_IF_ERROR(ReadTools(body, bytes, limits, chat));
  QUIRE_RETURN_IF_ERROR(ReadThinking(body, chat));
  QUIRE_RETURN_IF_ERROR(ReadOutputConfig(body, bytes, &request, &result.names));
  MoveSinglePartsToContent(chat);
  request.mutable_output()->set_stream(result.stream);
  request.mutable_output()->set_text(true);
  request.mutable_output()->set_parse(true);
  result.prompts.push_back(std::move(request));
  return result;
}

}  // namespace

const FieldTable& AnthropicFields() {
  static const auto* const kTable = new FieldTable(kFields);
  return *kTable;
}

absl::StatusOr<OpenAiRequest> ParseAnthropicRequest(absl::string_view bytes,
                                                    const OpenAiLimits& limits) {
  QUIRE_ASSIGN_OR_RETURN(OpenAiRequest result, ReadBody(bytes, limits));
  if (result.prompts[0].stopping().has_max_tokens()) return result;
  return WithReason(absl::InvalidArgumentError("max_tokens is missing"), Reason::kBadParameter,
                    {{"field", "max_tokens"}, {"param", "max_tokens"}});
}

absl::StatusOr<EvaluationPlan> ReadAnthropicTokenCount(const EvaluationBodyContext& context,
                                                       absl::string_view bytes) {
  QUIRE_ASSIGN_OR_RETURN(OpenAiRequest body, ReadBody(bytes, context.limits));
  v1::TokenizeRequest request;
  request.set_model(body.prompts[0].model());
  *request.mutable_chat() = std::move(*body.prompts[0].mutable_chat());
  v1::TokenizeResponse response;
  QUIRE_RETURN_IF_ERROR(
      Tokenize(context.served, context.max_input_bytes, context.wall_now, request, &response));
  EvaluationPlan plan;
  plan.answer = [count = response.token_ids_size()](const std::vector<EvaluationResult>&) {
    return absl::StatusOr<std::string>(absl::StrCat("{\"input_tokens\":", count, "}"));
  };
  return plan;
}

}  // namespace quire::server
