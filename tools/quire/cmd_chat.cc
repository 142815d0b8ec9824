// quire chat: a conversation in the terminal, or a single question. quire render: prints the
// rendered chat prompt.

#include <google/protobuf/struct.pb.h>
#include <google/protobuf/util/json_util.h>
#include <grpcpp/grpcpp.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/json_text.h"
#include "base/status.h"
#include "quire/v1/generation.grpc.pb.h"
#include "tools/quire/client.h"
#include "tools/quire/constraint_options.h"
#include "tools/quire/unary_call.h"

namespace quire::client {
namespace {

using nlohmann::ordered_json;

constexpr absl::string_view kMessagesForm = R"([{"role": "user", "content": "Hi"}])";
constexpr absl::string_view kToolsForm =
    R"([{"type": "function", "function": {"name": ..., "description": ..., "parameters": {...}}}])";

struct ChatOptions {
  std::string message;
  std::string system;
  std::string messages_file, tools_file, tool_choice;
  std::string template_name;
  std::vector<std::string> vars;
  std::string model;
  std::optional<float> temperature, top_p;
  std::optional<std::int32_t> top_k, max_tokens;
  std::optional<std::int64_t> seed;
  std::vector<std::string> stop;
  bool quiet = false;
  bool continue_final = false;
  bool no_generation_prompt = false;
  bool ids = false;
  v1::Constraint constraint;
};

// Parses the JSON form of a message. Errors begin with `source`.
absl::Status ParseJson(const std::string& json, absl::string_view source,
                       google::protobuf::Message* message) {
  const auto status = google::protobuf::util::JsonStringToMessage(json, message);
  if (status.ok()) return absl::OkStatus();
  const auto& text = status.message();
  return absl::InvalidArgumentError(
      absl::StrCat(source, ": ", absl::string_view(text.data(), text.size())));
}

// Merges the JSON form of one field of ChatPrompt, from the file `path`, into `chat`.
absl::Status MergeField(absl::string_view field, const ordered_json& value, const std::string& path,
                        v1::ChatPrompt* chat) {
  v1::ChatPrompt part;
  QUIRE_RETURN_IF_ERROR(
      ParseJson(absl::StrCat("{\"", field, "\": ", JsonText(value), "}"), path, &part));
  chat->MergeFrom(part);
  return absl::OkStatus();
}

absl::StatusOr<ordered_json> ReadList(const std::string& path, absl::string_view form) {
  QUIRE_ASSIGN_OR_RETURN(const std::string text, ReadInput(path));
  ordered_json list = ordered_json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (list.is_array()) return list;
  return absl::InvalidArgumentError(absl::StrCat(
      path, ": ", list.is_discarded() ? "the text is not JSON" : "the JSON is not a list",
      "; write ", form));
}

absl::Status MergeMessages(const std::string& path, v1::ChatPrompt* chat) {
  if (path.empty()) return absl::OkStatus();
  QUIRE_ASSIGN_OR_RETURN(const ordered_json list, ReadList(path, kMessagesForm));
  return MergeField("messages", list, path, chat);
}

// Converts a tool of OpenAI's format, with or without the `function` member, to the JSON form of
// ToolSpec. A tool that already has this form is returned unchanged.
ordered_json ToToolSpec(ordered_json tool) {
  if (!tool.is_object() || !(tool.contains("function") || tool.contains("parameters"))) return tool;
  if (!tool.contains("function")) {
    tool.erase("type");
    tool = {{"type", "function"}, {"function", std::move(tool)}};
  }
  return {{"toolJson", JsonText(tool)}};
}

absl::Status MergeTools(const std::string& path, v1::ChatPrompt* chat) {
  if (path.empty()) return absl::OkStatus();
  QUIRE_ASSIGN_OR_RETURN(ordered_json list, ReadList(path, kToolsForm));
  for (ordered_json& tool : list) tool = ToToolSpec(std::move(tool));
  return MergeField("tools", list, path, chat);
}

// Sets the template variable of an argument NAME=JSON.
absl::Status SetVariable(const std::string& argument, v1::ChatPrompt* chat) {
  const std::size_t equals = argument.find('=');
  if (equals == std::string::npos) {
    return absl::InvalidArgumentError(
        absl::StrCat("--var ", argument, " has no value; write NAME=JSON"));
  }
  auto& variables = *chat->mutable_template_vars()->mutable_fields();
  return ParseJson(argument.substr(equals + 1), absl::StrCat("--var ", argument),
                   &variables[argument.substr(0, equals)]);
}

// Standard input can be read only once.
absl::Status CheckStandardInput(const ChatOptions& options) {
  const int readers =
      (options.message == "-") + (options.messages_file == "-") + (options.tools_file == "-");
  if (readers <= 1) return absl::OkStatus();
  return absl::InvalidArgumentError(
      "only one of the message, --messages and --tools can be -, which reads standard input");
}

void AddMessage(const std::string& role, const std::string& content, v1::ChatPrompt* chat) {
  v1::ChatMessage* message = chat->add_messages();
  message->set_role(role);
  message->set_content(content);
}

// Sets the tool choice: a keyword or the name of a tool.
void SetToolChoice(const std::string& choice, v1::ChatPrompt* chat) {
  if (choice.empty()) return;
  for (const auto& [word, value] :
       {std::pair("auto", v1::TOOL_CHOICE_AUTO), std::pair("none", v1::TOOL_CHOICE_NONE),
        std::pair("required", v1::TOOL_CHOICE_REQUIRED)}) {
    if (choice == word) return chat->set_tool_choice(value);
  }
  chat->set_tool_choice(v1::TOOL_CHOICE_NAMED);
  chat->set_tool_name(choice);
}

// Builds the prompt from the options, including the message.
absl::StatusOr<v1::ChatPrompt> StartChat(const ChatOptions& options) {
  QUIRE_RETURN_IF_ERROR(CheckStandardInput(options));
  v1::ChatPrompt chat;
  chat.set_template_name(options.template_name);
  chat.set_continue_final_message(options.continue_final);
  if (options.no_generation_prompt) chat.set_add_generation_prompt(false);
  QUIRE_RETURN_IF_ERROR(MergeTools(options.tools_file, &chat));
  SetToolChoice(options.tool_choice, &chat);
  for (const std::string& var : options.vars) QUIRE_RETURN_IF_ERROR(SetVariable(var, &chat));
  if (!options.system.empty()) AddMessage("system", options.system, &chat);
  QUIRE_RETURN_IF_ERROR(MergeMessages(options.messages_file, &chat));
  if (options.message == "-") {
    QUIRE_ASSIGN_OR_RETURN(const std::string text, ReadInput("-"));
    AddMessage("user", text, &chat);
  } else if (!options.message.empty()) {
    AddMessage("user", options.message, &chat);
  }
  return chat;
}

v1::GenerateRequest ToRequest(const ChatOptions& options, const v1::ChatPrompt& chat) {
  v1::GenerateRequest request;
  request.set_model(options.model);
  *request.mutable_chat() = chat;
  v1::SamplingParams* sampling = request.mutable_sampling();
  if (options.temperature) sampling->set_temperature(*options.temperature);
  if (options.top_p) sampling->set_top_p(*options.top_p);
  if (options.top_k) sampling->set_top_k(*options.top_k);
  if (options.seed) sampling->set_seed(*options.seed);
  v1::StoppingParams* stopping = request.mutable_stopping();
  if (options.max_tokens) stopping->set_max_tokens(*options.max_tokens);
  for (const std::string& stop : options.stop) stopping->add_stop(stop);
  request.mutable_output()->set_stream(true);
  SetConstraint(options.constraint, &request);
  request.mutable_output()->set_parse(!options.tools_file.empty() || request.has_constraint());
  return request;
}

// Prints a part of an answer: text and tool calls (one per line) to standard output, reasoning to
// standard error. `before` is the part of the answer that was already printed.
void ShowDelta(const v1::Delta& delta, const v1::ChatMessage& before) {
  std::fwrite(delta.reasoning_text().data(), 1, delta.reasoning_text().size(), stderr);
  std::fwrite(delta.text().data(), 1, delta.text().size(), stdout);
  const bool is_first =
      before.content().empty() && before.tool_calls().empty() && delta.text().empty();
  const char* separator = is_first ? "" : "\n";
  for (const v1::ToolCallDelta& call : delta.tool_calls()) {
    std::printf("%s%s %s", separator, call.name().c_str(), call.arguments_json().c_str());
    separator = "\n";
  }
  std::fflush(stdout);
}

// Prints the error, and what to do if the model has no template. Returns the exit code.
int FailChat(const CommonOptions& common, const grpc::Status& status) {
  const int exit_code = Fail(common, status, common.address);
  if (ReasonOf(status) == "CHAT_TEMPLATE_MISSING") {
    std::fprintf(stderr,
                 "quire: start the server with a template: quired MODEL --set "
                 "chat.template_file=FILE; \"quire generate\" needs no template\n");
  }
  return exit_code;
}

// Requests one answer and streams it to standard output. Appends it to `answer`.
int RequestAnswer(const CommonOptions& common, const ChatOptions& options,
                  const v1::ChatPrompt& chat, v1::GenerationService::Stub* stub,
                  v1::ChatMessage* answer) {
  grpc::ClientContext context;
  ApplyDeadline(common, &context);
  InterruptGuard guard([&context] { context.TryCancel(); });
  const auto reader = stub->Generate(&context, ToRequest(options, chat));
  v1::GenerateResponse response;
  v1::Completed completed;
  while (reader->Read(&response)) {
    if (common.json) PrintJson(response);
    if (response.has_completed()) completed = response.completed();
    if (!response.has_delta()) continue;
    const v1::Delta& delta = response.delta();
    if (!common.json) ShowDelta(delta, *answer);
    answer->mutable_content()->append(delta.text());
    answer->mutable_reasoning_content()->append(delta.reasoning_text());
    for (const v1::ToolCallDelta& call : delta.tool_calls()) {
      v1::ToolCall* const made = answer->add_tool_calls();
      made->set_id(call.id());
      made->set_name(call.name());
      made->set_arguments_json(call.arguments_json());
    }
  }
  const grpc::Status status = reader->Finish();
  // An answer ends with a newline, even if it was truncated.
  const bool has_output = !answer->content().empty() || !answer->tool_calls().empty();
  if (!common.json && (status.ok() || has_output)) std::printf("\n");
  std::fflush(stdout);
  if (!status.ok()) return FailChat(common, status);
  if (completed.finish_reason() == v1::FINISH_REASON_LENGTH) {
    std::fprintf(stderr, "quire: the answer was cut after %d tokens; --max-tokens sets the limit\n",
                 completed.usage().completion_tokens());
  }
  return kOk;
}

// Reads the next line of the user. Returns false at the end of the input.
bool ReadLine(const ChatOptions& options, std::string* line) {
  // No request is running that could be cancelled, so an interrupt exits.
  InterruptGuard guard([] { std::_Exit(kOk); });
  if (!options.quiet && isatty(STDIN_FILENO) != 0) {
    std::fprintf(stderr, "> ");
    std::fflush(stderr);
  }
  return static_cast<bool>(std::getline(std::cin, *line));
}

int RunChat(const CommonOptions& common, const ChatOptions& options) {
  const auto stub = v1::GenerationService::NewStub(Connect(common, common.address));
  absl::StatusOr<v1::ChatPrompt> started = StartChat(options);
  if (!started.ok()) return FailWith(started.status(), kWrongUsage);
  v1::ChatPrompt chat = *std::move(started);
  v1::ChatMessage answer;
  if (!options.message.empty() || !options.messages_file.empty()) {
    return RequestAnswer(common, options, chat, stub.get(), &answer);
  }
  int result = kOk;
  for (std::string line; ReadLine(options, &line);) {
    if (absl::StripAsciiWhitespace(line).empty()) continue;
    AddMessage("user", line, &chat);
    answer.Clear();
    answer.set_role("assistant");
    result = RequestAnswer(common, options, chat, stub.get(), &answer);
    if (result == kCannotConnect) return result;
    if (result == kOk) {
      *chat.add_messages() = answer;
    } else {
      chat.mutable_messages()->RemoveLast();  // so that the user can ask again
    }
  }
  return result;
}

int RunRender(const CommonOptions& common, const ChatOptions& options) {
  absl::StatusOr<v1::ChatPrompt> chat = StartChat(options);
  if (!chat.ok()) return FailWith(chat.status(), kWrongUsage);
  v1::RenderChatRequest request;
  request.set_model(options.model);
  *request.mutable_chat() = *std::move(chat);
  v1::RenderChatResponse response;
  const grpc::Status status =
      Call(common, common.address, &v1::GenerationService::Stub::RenderChat, request, &response);
  if (!status.ok()) return FailChat(common, status);
  if (common.json) {
    PrintJson(response);
  } else if (options.ids) {
    std::printf("%s\n", absl::StrJoin(response.token_ids(), " ").c_str());
  } else {
    std::fwrite(response.text().data(), 1, response.text().size(), stdout);
  }
  return kOk;
}

void AddConversation(CLI::App* cmd, ChatOptions* options) {
  cmd->add_option("message", options->message, "message of the user; - reads standard input");
  cmd->add_option("--system", options->system, "system message before all others");
  cmd->add_option("--messages", options->messages_file,
                  absl::StrCat("file with a JSON list of messages, such as ", kMessagesForm));
  cmd->add_option("--tools", options->tools_file,
                  absl::StrCat("file with a JSON list of tools in OpenAI's format: ", kToolsForm));
  cmd->add_option("--tool-choice", options->tool_choice,
                  "auto, none, required, or the name of the tool to call");
  cmd->add_option("--template", options->template_name, "name of the model's template to use");
  cmd->add_option("--var", options->vars, "template variable, NAME=JSON, repeatable");
  cmd->add_flag("--continue", options->continue_final, "continue the last message");
  cmd->add_option("--model", options->model, "model id (default: the server's default)");
}

}  // namespace

void AddChat(CLI::App* app, const CommonOptions* common, int* exit_code) {
  auto options = std::make_shared<ChatOptions>();
  CLI::App* chat = app->add_subcommand(
      "chat", "chat with the model; without a message, read lines until the end of the input");
  AddConversation(chat, options.get());
  chat->add_option("--max-tokens", options->max_tokens, "maximum tokens of an answer");
  chat->add_option("--temperature", options->temperature, "sampling temperature; 0 is greedy");
  chat->add_option("--top-p", options->top_p, "nucleus sampling: total probability to keep");
  chat->add_option("--top-k", options->top_k, "keep the k most likely tokens; 0 is off");
  chat->add_option("--seed", options->seed, "seed; the same seed repeats the answers");
  chat->add_option("--stop", options->stop, "text that ends an answer, repeatable");
  AddConstraintOptions(chat, &options->constraint);
  AddConstraintStart(chat, &options->constraint);
  chat->add_flag("--quiet", options->quiet, "print no input prompt to standard error");
  chat->callback([=] { *exit_code = RunChat(*common, *options); });

  auto shown = std::make_shared<ChatOptions>();
  CLI::App* render = app->add_subcommand("render", "print the rendered chat prompt");
  AddConversation(render, shown.get());
  render->add_flag("--no-generation-prompt", shown->no_generation_prompt,
                   "do not append the start of an answer");
  render->add_flag("--ids", shown->ids, "print token ids instead of text");
  render->callback([=] { *exit_code = RunRender(*common, *shown); });
}

}  // namespace quire::client
