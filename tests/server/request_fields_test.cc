// The table of request fields: one outcome per field, and documentation that lists it.

#include "server/openai/request_fields.h"

#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/error_reason.h"
#include "base/logging.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/openai/openai_request.h"
#include "server/openai/unknown_field_log.h"
#include "tests/testing/temp_dir.h"

namespace quire::server {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

absl::Status Check(FieldOwner owner, absl::string_view body,
                   const UnknownFieldHandler& on_unknown = nullptr) {
  const auto document = formats::JsonDocument::Parse(body);
  EXPECT_TRUE(document.ok()) << document.status();
  return CheckFields(RequestFields(), document->root(), owner, on_unknown);
}

std::string ParamOf(const absl::Status& status) {
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  const auto reason = GetErrorReason(status);
  if (!reason) return "";
  EXPECT_EQ(reason->name(), "BAD_PARAMETER");
  return std::string(reason->Find("param").value_or(""));
}

TEST(RequestFieldsTest, EachMemberHasOneOutcome) {
  std::map<std::string, std::uint32_t> owners;
  for (const RequestField& field : RequestFields()) {
    std::uint32_t& known = owners[std::string(field.name)];
    EXPECT_EQ(known & field.owners, 0U) << field.name;
    known |= field.owners;
    EXPECT_EQ(field.outcome == FieldOutcome::kRefused, !field.remedy.empty()) << field.name;
    EXPECT_EQ(field.outcome == FieldOutcome::kNoMeaning, field.types != 0) << field.name;
    EXPECT_TRUE(nlohmann::json::parse(field.neutral).is_array()) << field.name;
  }
}

// A value that no field accepts is refused by the reader of the field, so the reader knows it.
TEST(RequestFieldsTest, ReadersReadEverySupportedField) {
  for (const RequestField& field : RequestFields()) {
    // Any JSON can be a schema; the compiler of constraints checks it.
    if (field.outcome != FieldOutcome::kSupported || field.name == "guided_json") continue;
    for (const bool is_chat : {false, true}) {
      if ((field.owners & (is_chat ? kChatBody : kCompletionBody)) == 0) continue;
      nlohmann::json body;
      if (is_chat) {
        body["messages"] = {{{"role", "user"}, {"content", "a"}}};
        if (field.name == "top_logprobs") body["logprobs"] = true;
        if (field.name == "function_call") body["functions"] = nlohmann::json::array();
      } else {
        body["prompt"] = "a";
      }
      body[std::string(field.name)] = {{nlohmann::json::array()}};
      const absl::Status status =
          (is_chat ? ParseChatRequest(body.dump()) : ParseCompletionRequest(body.dump())).status();
      EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << field.name;
      const auto reason = GetErrorReason(status);
      EXPECT_THAT(std::string(reason ? reason->Find("field").value_or("") : ""),
                  StartsWith(std::string(field.name)));
    }
  }
}

TEST(RequestFieldsTest, UnknownFieldsAreRefusedWithASuggestion) {
  const auto expect = [](FieldOwner owner, const char* body, const char* param,
                         const char* suggestion) {
    const absl::Status status = Check(owner, body);
    EXPECT_EQ(ParamOf(status), param) << body;
    EXPECT_THAT(std::string(status.message()),
                HasSubstr(*suggestion == '\0'
                              ? "is not a known field; remove it, or set openai.unknown_fields"
                              : absl::StrCat("did you mean ", suggestion, "?")));
  };
  expect(kCompletionBody, R"({"temperture": 1})", "temperture", "temperature");
  expect(kCompletionBody, R"({"maxTokens": 1})", "maxTokens", "max_tokens");
  expect(kCompletionBody, R"({"maxCompletionTokens": 1})", "maxCompletionTokens",
         "max_completion_tokens");
  expect(kChatBody, R"({"nobody_knows_this": {}})", "nobody_knows_this", "");
  expect(kChatBody, R"({"prompt": "a"})", "prompt", "");
  expect(kEmbeddingBody, R"({"inputs": []})", "inputs", "input");
  expect(kScoreBody, R"({"text": []})", "text", "text_1");
  expect(kChatBody, R"({"stream_options": {"include_usages": true}})",
         "stream_options.include_usages", "include_usage");
  expect(kChatBody, R"({"response_format": {"type": "json_schema", "json_shema": {}}})",
         "response_format.json_shema", "json_schema");
  expect(kChatBody, R"({"response_format": {"json_schema": {"schema": {}, "strickt": true}}})",
         "response_format.json_schema.strickt", "");
  expect(kChatBody, R"({"messages": [{"role": "user"}, {"roll": "user"}]})", "messages[1].roll",
         "role");
  expect(kChatBody, R"({"messages": [{"content": [{"type": "text", "txt": "a"}]}]})",
         "messages[0].content[0].txt", "text");
  expect(kChatBody, R"({"messages": [{"tool_calls": [{"function": {"argument": ""}}]}]})",
         "messages[0].tool_calls[0].function.argument", "arguments");
  expect(kChatBody, R"({"tools": [{"function": {"paramters": {}}}]})",
         "tools[0].function.paramters", "parameters");
  expect(kChatBody, R"({"tool_choice": {"allowed_tools": {"tool": []}}})",
         "tool_choice.allowed_tools.tool", "tools");
  expect(kChatBody, R"({"": 1})", R"("")", "");
  expect(kRerankBody, R"({"documents": ["a", {"text": "a", "title": "b"}]})", "documents[1].title",
         "");
  // A name of any length does not fill the answer.
  const absl::Status status =
      Check(kChatBody, absl::StrCat("{\"", std::string(1 << 16, 'x'), "\": 1}"));
  EXPECT_LT(status.message().size(), 300U);
}

TEST(RequestFieldsTest, SchemasAndFreeObjectsAreNotChecked) {
  EXPECT_TRUE(Check(kChatBody, R"({"response_format": {"type": "json_schema",
      "json_schema": {"type": "object", "any": 1}}, "metadata": {"x": {"y": 1}},
      "chat_template_kwargs": {"x": 1}, "documents": [{"x": 1}], "logit_bias": {"x": 1},
      "tools": [{"function": {"name": "f", "parameters": {"x": 1}}}],
      "structured_outputs": {"json": {"x": 1}}})")
                  .ok());
}

TEST(RequestFieldsTest, NullMembersCountAsAbsent) {
  EXPECT_TRUE(Check(kChatBody, R"({"temperture": null, "audio": null, "store": null,
      "messages": [{"role": "assistant", "audio": null, "refusal": null, "other": null}]})")
                  .ok());
}

TEST(RequestFieldsTest, RefusedFieldsNameTheRemedy) {
  const absl::Status status = Check(kChatBody, R"({"verbosity": "low"})");
  EXPECT_EQ(ParamOf(status), "verbosity");
  EXPECT_EQ(status.message(),
            "verbosity is not supported; ask for short or long answers in a message");
  EXPECT_TRUE(Check(kChatBody, R"({"verbosity": "medium", "modalities": ["text"],
      "use_beam_search": false, "length_penalty": 1.0, "n_keep": -1, "kv_transfer_params": {}})")
                  .ok());
  EXPECT_EQ(ParamOf(Check(kChatBody, R"({"modalities": ["text", "audio"]})")), "modalities");
  EXPECT_EQ(ParamOf(Check(kChatBody, R"({"messages": [{"content": [
      {"type": "image_url", "image_url": {"url": "u"}}]}]})")),
            "messages[0].content[0].image_url");
}

TEST(RequestFieldsTest, FieldsWithoutMeaningAreCheckedForTheirType) {
  EXPECT_TRUE(Check(kChatBody, R"({"store": true, "metadata": {}, "service_tier": "flex",
      "stream_options": {"include_obfuscation": false}})")
                  .ok());
  const absl::Status status = Check(kChatBody, R"({"metadata": "a"})");
  EXPECT_EQ(ParamOf(status), "metadata");
  EXPECT_EQ(status.message(), "metadata must be an object");
}

TEST(RequestFieldsTest, UnknownFieldsCanBeAccepted) {
  std::vector<std::string> names;
  const auto collect = [&](absl::string_view path) { names.emplace_back(path); };
  EXPECT_TRUE(
      Check(kChatBody, R"({"a": 1, "messages": [{"role": "user", "b": {"c": 1}}]})", collect).ok());
  EXPECT_THAT(names, ElementsAre("a", "messages[0].b"));
  // Refused fields stay refused.
  EXPECT_EQ(ParamOf(Check(kChatBody, R"({"audio": {}})", collect)), "audio");
}

TEST(RequestFieldsTest, UnknownNamesAreLoggedOnceUpToALimit) {
  const quire::testing::TempDir dir;
  const std::string file = dir.path() + "/log";
  ASSERT_TRUE(log::Configure({.file = file}).ok());
  UnknownFieldLog names;
  EXPECT_TRUE(names.Warn("messages[0].a"));
  EXPECT_FALSE(names.Warn("messages[17].a"));
  EXPECT_TRUE(names.Warn("messages[0].b"));
  for (std::size_t i = 2; i < UnknownFieldLog::kMaxNames; ++i) {
    EXPECT_TRUE(names.Warn(absl::StrCat("x", i)));
  }
  EXPECT_FALSE(names.Warn("one more"));
  EXPECT_FALSE(names.Warn("another"));
  EXPECT_TRUE(names.CheckIntegrity().ok());
  ASSERT_TRUE(log::Flush(absl::Seconds(20)));
  ASSERT_TRUE(log::Configure({}).ok());
  std::vector<std::string> lines;
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  ASSERT_EQ(lines.size(), UnknownFieldLog::kMaxNames + 1);
  EXPECT_THAT(lines.back(), HasSubstr("further names of unknown request fields are not logged"));
}

// The parts of docs/openai.md that follow from the table.
constexpr std::pair<std::uint32_t, const char*> kOwnerNames[] = {
    {kCompletionBody, "completions"},
    {kChatBody, "chat"},
    {kEmbeddingBody, "embeddings"},
    {kScoreBody, "score"},
    {kRerankBody, "rerank"},
    {kClassifyBody, "classify"},
    {kStreamOptions, "`stream_options`"},
    {kResponseFormat, "`response_format`"},
    {kSchemaWrapper, "`response_format.json_schema`"},
    {kStructuredOutputs, "`structured_outputs`"},
    {kMessage, "a message"},
    {kContentPart, "a content part"},
    {kToolCall, "a tool call"},
    {kCalledFunction, "a called function"},
    {kTool, "a tool"},
    {kFunction, "a function"},
    {kToolChoice, "`tool_choice`"},
    {kAllowedTools, "`allowed_tools`"},
    {kNamedTool, "an allowed tool"},
    {kName, "a named function"},
    {kDocument, "a document"},
};

std::string OwnerNames(std::uint32_t owners) {
  constexpr std::uint32_t kAllBodies =
      kCompletionBody | kChatBody | kEmbeddingBody | kScoreBody | kRerankBody | kClassifyBody;
  if (owners == kAllBodies) return "all";
  std::vector<std::string> names;
  for (const auto& [owner, name] : kOwnerNames) {
    if ((owners & owner) != 0) names.emplace_back(name);
  }
  return absl::StrJoin(names, ", ");
}

// Returns the rows of a table: fields of the same owners and the same remedy share a row.
std::set<std::string> RowsOf(FieldOutcome outcome) {
  std::map<std::pair<std::string, std::string>, std::vector<std::string>> names;
  for (const RequestField& field : RequestFields()) {
    if (field.outcome != outcome) continue;
    names[{OwnerNames(field.owners), std::string(field.remedy)}].push_back(
        absl::StrCat("`", field.name, "`"));
  }
  std::set<std::string> rows;
  for (const auto& [key, fields] : names) {
    const auto& [owners, remedy] = key;
    rows.insert(absl::StrCat("| ", owners, " | ", absl::StrJoin(fields, ", "), " |",
                             remedy.empty() ? "" : absl::StrCat(" ", remedy, " |")));
  }
  return rows;
}

class OpenAiDocsTest : public ::testing::Test {
 protected:
  OpenAiDocsTest() {
    std::ifstream file(QUIRE_DOCS_FOLDER "/openai.md");
    std::stringstream text;
    text << file.rdbuf();
    page_ = text.str();
  }

  // Returns the text of a section without its heading.
  std::string Section(absl::string_view heading) const {
    const std::size_t begin = page_.find(absl::StrCat("\n", heading, "\n"));
    EXPECT_NE(begin, std::string::npos) << heading;
    if (begin == std::string::npos) return "";
    const std::size_t after = begin + heading.size() + 2;
    return page_.substr(after, page_.find("\n#", after) - after);
  }

  // Returns the rows of the table of a section, without its two head rows.
  std::set<std::string> Rows(absl::string_view heading) const {
    std::set<std::string> rows;
    int count = 0;
    for (const absl::string_view line : absl::StrSplit(Section(heading), '\n')) {
      if (absl::StartsWith(line, "| ") && ++count > 1) rows.emplace(line);
    }
    return rows;
  }

  std::string page_;
};

TEST_F(OpenAiDocsTest, ListRefusedFields) {
  EXPECT_EQ(absl::StrJoin(Rows("### Refused fields"), "\n"),
            absl::StrJoin(RowsOf(FieldOutcome::kRefused), "\n"));
}

TEST_F(OpenAiDocsTest, ListFieldsWithoutMeaning) {
  EXPECT_EQ(absl::StrJoin(Rows("### Fields without meaning"), "\n"),
            absl::StrJoin(RowsOf(FieldOutcome::kNoMeaning), "\n"));
}

TEST_F(OpenAiDocsTest, NameSupportedFields) {
  const std::string generation = Section("### Supported fields");
  const std::string evaluation = Section("## Embeddings, scores, labels");
  for (const RequestField& field : RequestFields()) {
    if (field.outcome != FieldOutcome::kSupported) continue;
    const std::string name = absl::StrCat("`", field.name, "`");
    constexpr std::uint32_t kEvaluation = kEmbeddingBody | kScoreBody | kRerankBody | kClassifyBody;
    if ((field.owners & ~kEvaluation) != 0) {
      EXPECT_THAT(generation, HasSubstr(name));
    }
    if ((field.owners & kEvaluation) != 0) {
      EXPECT_THAT(evaluation, HasSubstr(name));
    }
  }
}

}  // namespace
}  // namespace quire::server
