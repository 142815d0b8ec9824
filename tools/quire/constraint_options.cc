#include "tools/quire/constraint_options.h"

#include <CLI/CLI.hpp>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "quire/v1/generation.pb.h"
#include "tools/quire/client.h"

namespace quire::client {
namespace {

void AddWord(CLI::App* cmd, const std::string& name, const std::string& description,
             const std::map<std::string, int>& words, const std::function<void(int)>& take) {
  cmd->add_option_function<std::string>(
         name, [=](const std::string& word) { take(words.at(word)); }, description)
      ->check(CLI::IsMember(words));
}

}  // namespace

void AddConstraintOptions(CLI::App* cmd, v1::Constraint* constraint) {
  CLI::Option* const schema = AddFileOption(
      cmd, "--schema", "file with a JSON Schema for the answer", [=](std::string text) {
        constraint->set_json_schema(std::move(text));
        return absl::OkStatus();
      });
  CLI::Option* const regex = cmd->add_option_function<std::string>(
      "--regex", [=](const std::string& text) { constraint->set_regex(text); },
      "regular expression that the whole answer must match");
  CLI::Option* const grammar = AddFileOption(
      cmd, "--grammar", "file with an EBNF grammar for the answer; its start rule is root",
      [=](std::string text) {
        constraint->set_ebnf_grammar(std::move(text));
        return absl::OkStatus();
      });
  CLI::Option* const choice =
      cmd->add_option_function<std::vector<std::string>>(
             "--choice",
             [=](const std::vector<std::string>& texts) {
               constraint->mutable_choice()->mutable_values()->Assign(texts.begin(), texts.end());
             },
             "allowed answer, repeatable")
          ->allow_extra_args(false);
  // An answer has one constraint.
  schema->excludes(regex)->excludes(grammar)->excludes(choice);
  regex->excludes(grammar)->excludes(choice);
  grammar->excludes(choice);
  // Without a JSON constraint, the server refuses this option with an error that names the field.
  AddWord(cmd, "--constraint-whitespace",
          "white space between JSON tokens: bounded or compact (with --schema, the default is "
          "compact)",
          {{"bounded", v1::WHITESPACE_POLICY_BOUNDED}, {"compact", v1::WHITESPACE_POLICY_COMPACT}},
          [=](int value) { constraint->set_whitespace(static_cast<v1::WhitespacePolicy>(value)); });
}

void AddConstraintStart(CLI::App* cmd, v1::Constraint* constraint) {
  AddWord(
      cmd, "--constraint-start",
      "where the constraint begins: at_start or after_reasoning (default: after the reasoning if "
      "the model reasons)",
      {{"at_start", v1::CONSTRAINT_START_AT_START},
       {"after_reasoning", v1::CONSTRAINT_START_AFTER_REASONING}},
      [=](int value) { constraint->set_start(static_cast<v1::ConstraintStart>(value)); });
}

void SetConstraint(const v1::Constraint& constraint, v1::GenerateRequest* request) {
  if (constraint.ByteSizeLong() == 0) return;
  *request->mutable_constraint() = constraint;
  // White space costs tokens, and neither a person at a terminal nor a script needs it.
  if (constraint.has_json_schema() &&
      constraint.whitespace() == v1::WHITESPACE_POLICY_UNSPECIFIED) {
    request->mutable_constraint()->set_whitespace(v1::WHITESPACE_POLICY_COMPACT);
  }
}

}  // namespace quire::client
