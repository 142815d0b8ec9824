#include "server/openai/field_names.h"

#include <google/protobuf/descriptor.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "base/error_reason.h"
#include "quire/v1/generation.pb.h"
#include "server/api/request_translator.h"
#include "server/openai/openai_error.h"
#include "server/openai/openai_request.h"

namespace quire::server {
namespace {

// Sections and members of the gRPC API that the OpenAI API does not have.
constexpr const char* kForeign[] = {"sampling.", "stopping.",      "output.",
                                    "chat.",     "constraint.",    "cache.",
                                    "tool_json", "arguments_json", "parameters_json_schema"};

void ExpectOurs(const std::string& text, const std::string& of) {
  // Configuration keys keep their names, since operators set them.
  const std::string fields = absl::StrReplaceAll(text, {{"chat.tool_format", ""}});
  for (const char* const word : kForeign) {
    EXPECT_FALSE(absl::StrContains(fields, word)) << of << " became " << text;
  }
}

// Adds every path of the message, with an index for repeated fields.
void AddPaths(const google::protobuf::Descriptor& type, const std::string& prefix,
              std::vector<std::string>* paths) {
  for (int i = 0; i < type.field_count(); ++i) {
    const google::protobuf::FieldDescriptor& field = *type.field(i);
    const std::string path = absl::StrCat(prefix, field.name());
    paths->push_back(path);
    const std::string element = field.is_repeated() ? path + "[7]" : path;
    if (field.is_repeated()) paths->push_back(element);
    if (field.message_type() == nullptr || field.is_map() ||
        !absl::StartsWith(field.message_type()->full_name(), "quire.")) {
      continue;
    }
    AddPaths(*field.message_type(), element + ".", paths);
  }
}

TEST(FieldNamesTest, RenamesEveryFieldOfARequest) {
  std::vector<std::string> paths;
  AddPaths(*v1::GenerateRequest::descriptor(), "", &paths);
  EXPECT_GT(paths.size(), 100u);
  FieldNames names;
  names.SetConstraint("structured_outputs.json");
  for (const std::string& path : paths) {
    ExpectOurs(names.Rename(path) + " ", path);
    ExpectOurs(names.RenameIn(absl::StrCat(path, " is 5 (", path, " says so)")), path);
  }
}

TEST(FieldNamesTest, UsesNamesOfTheBody) {
  FieldNames names;
  EXPECT_EQ(names.Rename("sampling.dry_sequence_breakers[1]"), "dry_sequence_breakers[1]");
  EXPECT_EQ(names.Rename("sampling.choice_count"), "n");
  EXPECT_EQ(names.Rename("sampling.logit_bias[17]"), "logit_bias[17]");
  EXPECT_EQ(names.Rename("chat.tools[3].parameters_json_schema"), "tools[3].function.parameters");
  EXPECT_EQ(names.Rename("chat.tools[3].strict"), "tools[3].function.strict");
  EXPECT_EQ(names.Rename("chat.messages[2].tool_calls[4].arguments_json"),
            "messages[2].tool_calls[4].function.arguments");
  EXPECT_EQ(names.Rename("sampling.top_p"), "top_p");
  EXPECT_EQ(names.Rename("stopping.max_tokens"), "max_tokens");
  EXPECT_EQ(names.Rename("output.prompt_logprobs"), "logprobs");
  EXPECT_EQ(names.Rename("messages[0].role"), "messages[0].role");
  EXPECT_EQ(names.Rename("constraint.regex"), "constraint.regex");
  // Configuration keys are not fields.
  EXPECT_EQ(names.Rename("chat.tool_format"), "chat.tool_format");
  EXPECT_EQ(names.Rename("constraint"), "response_format");
  names.SetConstraint("guided_regex");
  EXPECT_EQ(names.Rename("constraint.regex"), "guided_regex");
  EXPECT_EQ(names.Rename("constraint.start"), "constraint_start");
  names.Set("stopping.stop[]", "stop");
  EXPECT_EQ(names.Rename("stopping.stop[0]"), "stop");
  EXPECT_EQ(names.Rename("stopping.stop_token_ids[0]"), "stop_token_ids[0]");
  names.Set("prompt", "prompt[2]");
  EXPECT_EQ(names.Rename("prompt"), "prompt[2]");
  names.SetToolIndexes({4, 6});
  EXPECT_EQ(names.Rename("chat.tools[1].name"), "tools[6].function.name");
}

TEST(FieldNamesTest, RenamesFieldsInTextsAndKeepsTheRest) {
  const FieldNames names;
  EXPECT_EQ(names.RenameIn("stopping.stop[1] has 300 bytes, must be in [1, 256]"),
            "stop[1] has 300 bytes, must be in [1, 256]");
  EXPECT_EQ(names.RenameIn("a call (chat.tool_choice) in 127.0.0.1, e.g. chat.tool_format"),
            "a call (tool_choice) in 127.0.0.1, e.g. chat.tool_format");
  EXPECT_EQ(names.RenameIn(R"(output.logprobs is "chat.tools \" chat.tools", not /p/chat.tools)"),
            R"(logprobs is "chat.tools \" chat.tools", not /p/chat.tools)");
}

struct Refusal {
  const char* members;  // of the body
  const char* param;
};

TranslatorOptions Options() {
  TranslatorOptions options;
  options.model_id = "m";
  options.limits.vocab_size = 100;
  options.limits.max_tokens_per_request = 50;
  options.limits.max_stop_sequences = 4;
  options.default_max_tokens = 10;
  return options;
}

// Returns the error for a body that parses and that the translator rejects.
nlohmann::json ErrorOf(const absl::StatusOr<OpenAiRequest>& parsed) {
  EXPECT_TRUE(parsed.ok()) << parsed.status();
  if (!parsed.ok()) return nullptr;
  const RequestTranslator translator(Options());
  for (const v1::GenerateRequest& prompt : parsed->prompts) {
    const absl::Status status = translator.ToRequest(prompt, CallInfo()).status();
    if (status.ok()) continue;
    return nlohmann::json::parse(OpenAiError(status, parsed->names).body)["error"];
  }
  return nullptr;
}

void ExpectRefused(const absl::StatusOr<OpenAiRequest>& parsed, const Refusal& refusal) {
  const nlohmann::json error = ErrorOf(parsed);
  ASSERT_FALSE(error.is_null()) << refusal.members;
  EXPECT_EQ(error["param"], refusal.param) << error;
  const std::string message = error["message"];
  EXPECT_TRUE(absl::StrContains(message, refusal.param)) << error;
  ExpectOurs(message, refusal.members);
}

// RequestTranslator rejects each of these values. The cases set every field of a body.
TEST(OpenAiErrorTest, RejectedCompletionsNameTheFieldOfTheBody) {
  for (const Refusal& refusal : {
           Refusal{R"("model": "other")", "model"},
           Refusal{R"("temperature": -1)", "temperature"},
           Refusal{R"("top_p": 2)", "top_p"},
           Refusal{R"("top_k": -2)", "top_k"},
           Refusal{R"("min_p": 2)", "min_p"},
           Refusal{R"("top_n_sigma": -2)", "top_n_sigma"},
           Refusal{R"("xtc_probability": 2)", "xtc_probability"},
           Refusal{R"("xtc_threshold": 2)", "xtc_threshold"},
           Refusal{R"("repetition_penalty": 0)", "repetition_penalty"},
           Refusal{R"("presence_penalty": 3)", "presence_penalty"},
           Refusal{R"("frequency_penalty": -3)", "frequency_penalty"},
           Refusal{R"("n": 0)", "n"},
           Refusal{R"("n": 99)", "n"},
           Refusal{R"("bad_words": [""])", "bad_words[0]"},
           Refusal{R"("dry_multiplier": -1)", "dry_multiplier"},
           Refusal{R"("dry_multiplier": 1, "dry_base": 0)", "dry_base"},
           Refusal{R"("dry_multiplier": 1, "dry_allowed_length": 0)", "dry_allowed_length"},
           Refusal{R"("dry_multiplier": 1, "dry_penalty_last_n": -7)", "dry_penalty_last_n"},
           Refusal{R"("dry_multiplier": 1, "dry_sequence_breakers": ["a", ""])",
                   "dry_sequence_breakers[1]"},
           Refusal{R"("logit_bias": {"1": 101})", "logit_bias[1]"},
           Refusal{R"("logit_bias": {"100": 1})", "logit_bias"},
           Refusal{R"("logit_bias": {"-1": 1})", "logit_bias"},
           Refusal{R"("max_tokens": 0)", "max_tokens"},
           Refusal{R"("max_tokens": 51)", "max_tokens"},
           Refusal{R"("max_tokens": 2, "max_completion_tokens": 51)", "max_completion_tokens"},
           Refusal{R"("min_tokens": 11)", "min_tokens"},
           Refusal{R"("stop": "")", "stop"},
           Refusal{R"("stop": ["a", ""])", "stop"},
           Refusal{R"("stop": ["a", "b", "c", "d", "e"])", "stop"},
           Refusal{R"("stop_token_ids": [5, 100])", "stop_token_ids"},
           Refusal{R"("logprobs": 21)", "logprobs"},
           Refusal{R"("logprobs": -1)", "logprobs"},
           Refusal{R"("logprobs": 21, "echo": true)", "logprobs"},
           Refusal{R"("priority": 101)", "priority"},
           Refusal{R"("structured_outputs": {"regex": "a"}, "constraint_start": "after_reasoning")",
                   "constraint_start"},
       }) {
    ExpectRefused(ParseCompletionRequest(absl::StrCat(R"({"prompt": "a", )", refusal.members, "}")),
                  refusal);
  }
  const std::string salt = absl::StrCat(R"("cache_salt": ")", std::string(129, 's'), "\"");
  ExpectRefused(ParseCompletionRequest(absl::StrCat(R"({"prompt": "a", )", salt, "}")),
                {salt.c_str(), "cache_salt"});
  ExpectRefused(ParseCompletionRequest(R"({"prompt": ""})"), {"", "prompt"});
  ExpectRefused(ParseCompletionRequest(R"({"prompt": []})"), {"", "prompt"});
}

TEST(OpenAiErrorTest, RejectedChatsNameTheFieldOfTheBody) {
  const std::string message = R"({"role": "user", "content": "x"})";
  for (const Refusal& refusal : {
           Refusal{R"("messages": [])", "messages"},
           Refusal{R"("messages": [{"role": "", "content": "x"}])", "messages[0].role"},
           Refusal{R"("messages": [@], "logprobs": true, "top_logprobs": 21)", "top_logprobs"},
           Refusal{R"("messages": [@], "tools": [{"function": {"name": "f"}},
                      {"function": {"name": "a.b"}}])",
                   "tools[1].function.name"},
           Refusal{R"("messages": [@], "tools": [{"function": {"name": ""}}])",
                   "tools[0].function.name"},
           Refusal{R"("messages": [@], "tool_choice": "required")", "tool_choice"},
           Refusal{R"("messages": [@], "tools": [{"function": {"name": "f"}}],
                      "tool_choice": "required")",
                   "tool_choice"},
           Refusal{R"("messages": [@], "tools": [{"function": {"name": "f"}}],
                      "tool_choice": {"type": "function", "function": {"name": "g"}})",
                   "tool_choice.function.name"},
           Refusal{R"("messages": [@], "continue_final_message": true,
                      "add_generation_prompt": true)",
                   "continue_final_message"},
           Refusal{R"("messages": [@], "response_format": {"type": "json_object"},
                      "constraint_start": "after_reasoning")",
                   "constraint_start"},
       }) {
    std::string body = absl::StrCat("{", refusal.members, "}");
    if (const auto at = body.find('@'); at != body.npos) body.replace(at, 1, message);
    ExpectRefused(ParseChatRequest(body), refusal);
  }
}

// Later errors of the engine and the compiler name the request's fields, or none.
TEST(OpenAiErrorTest, ErrorsOfTheEngineNameTheFieldOfTheBody) {
  const auto error = [](const absl::Status& status, const FieldNames& names) {
    return nlohmann::json::parse(OpenAiError(status, names).body)["error"];
  };
  const auto status = [](absl::string_view message, Reason reason, const char* field = nullptr) {
    std::vector<std::pair<std::string, std::string>> metadata;
    if (field != nullptr) metadata.emplace_back("field", field);
    return WithReason(absl::InvalidArgumentError(message), reason, metadata);
  };
  const FieldNames chat =
      ParseChatRequest(R"({"messages": [], "response_format": {"type": "json_schema",
                           "json_schema": {"schema": {"type": "null"}}}})")
          ->names;
  const absl::Status too_long =
      status("prompt has 9 tokens, model context is 8", Reason::kPromptTooLong, "prompt");
  EXPECT_EQ(error(too_long, chat)["param"], "messages");
  EXPECT_EQ(error(too_long, chat)["message"], "messages: prompt has 9 tokens, model context is 8");
  EXPECT_EQ(error(too_long, {})["message"], "prompt has 9 tokens, model context is 8");
  const nlohmann::json schema =
      error(status("constraint.json_schema: /a: is no schema", Reason::kBadConstraint), chat);
  EXPECT_EQ(schema["param"], "response_format.json_schema.schema");
  EXPECT_EQ(schema["message"], "response_format.json_schema.schema: /a: is no schema");
  EXPECT_EQ(error(status("constraint takes too long", Reason::kBadConstraint), chat)["message"],
            "response_format.json_schema.schema takes too long");
  EXPECT_EQ(error(status("compiled constraint has 9 bytes", Reason::kBadConstraint), chat)["param"],
            "response_format.json_schema.schema");
  EXPECT_EQ(error(status("chat template \"default\", line 1: no", Reason::kBadChatTemplateInput),
                  chat)["message"],
            "messages: chat template \"default\", line 1: no");
  EXPECT_EQ(error(status("chat.messages[1].tool_calls[0].arguments_json is not JSON at byte 1",
                         Reason::kBadChatTemplateInput),
                  chat)["param"],
            "messages[1].tool_calls[0].function.arguments");
  // A chat without an explicit constraint may have a constraint for its tools.
  const FieldNames tools = ParseChatRequest(R"({"messages": []})")->names;
  EXPECT_EQ(error(status("constraint has 9 bytes", Reason::kBadConstraint), tools)["message"],
            "tools has 9 bytes");
  const FieldNames tags =
      ParseCompletionRequest(R"({"prompt": "a", "response_format": {"type": "structural_tag",
          "format": {"type": "triggered_tags", "triggers": ["<"], "tags": [{"begin": "<a>",
          "content": {"type": "regex", "pattern": "x"}, "end": "</a>"}]}}})")
          ->names;
  EXPECT_EQ(
      error(status("constraint.structural_tags.tags[0].begin has 0 bytes", Reason::kBadConstraint),
            tags)["param"],
      "response_format.format.tags[0].begin");
  EXPECT_EQ(error(status("constraint.structural_tags.triggers has 0 texts", Reason::kBadConstraint),
                  tags)["param"],
            "response_format.format.triggers");
}

}  // namespace
}  // namespace quire::server
