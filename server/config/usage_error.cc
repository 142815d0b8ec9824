#include "server/config/usage_error.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/closest_name.h"

namespace quire::server {
namespace {

// Returns the commands from the program to the last subcommand of the command line.
std::vector<const CLI::App*> ChosenCommands(const CLI::App& app) {
  std::vector<const CLI::App*> chosen = {&app};
  while (!chosen.back()->get_subcommands().empty()) {
    chosen.push_back(chosen.back()->get_subcommands().front());
  }
  return chosen;
}

std::string FullName(const std::vector<const CLI::App*>& chosen) {
  std::string name;
  for (const CLI::App* app : chosen)
    absl::StrAppend(&name, name.empty() ? "" : " ", app->get_name());
  return name;
}

std::string Suggestion(absl::string_view name, const std::vector<std::string>& known) {
  const std::vector<absl::string_view> views(known.begin(), known.end());
  const absl::string_view closest = ClosestName(name, views);
  return closest.empty() ? "" : absl::StrCat("; did you mean \"", closest, "\"?");
}

std::string DescribeUnknownCommand(const CLI::App& app, const std::string& word) {
  std::vector<std::string> names;
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) {
    names.push_back(command->get_name());
  }
  return absl::StrCat("\"", word, "\" is not a command", Suggestion(word, names));
}

std::string DescribeUnknownOption(const std::vector<const CLI::App*>& chosen,
                                  absl::string_view word) {
  const absl::string_view name = word.substr(0, word.find('='));
  std::vector<std::string> names;
  for (const CLI::App* app : chosen) {
    for (const CLI::Option* option : app->get_options()) {
      for (const std::string& known : option->get_lnames()) names.push_back("--" + known);
    }
  }
  return absl::StrCat("unknown option ", name, Suggestion(name, names));
}

std::string DescribeExtra(const std::vector<const CLI::App*>& chosen, const std::string& word) {
  if (absl::StartsWith(word, "-")) return DescribeUnknownOption(chosen, word);
  return absl::StrCat("unexpected argument \"", word, "\"; put quotes around a text with spaces");
}

bool HasCommands(const CLI::App& app) {
  return !app.get_subcommands([](const CLI::App*) { return true; }).empty();
}

// Returns the type of an option's value in words.
std::string DescribeType(const std::string& type) {
  if (type == "INT") return "an integer";
  if (type == "UINT") return "an integer of at least 0";
  return type == "FLOAT" ? "a number" : type;
}

// Describes a value that could not be converted. CLI11 prints it as "MESSAGE: --name = value".
std::string DescribeConversion(const std::vector<const CLI::App*>& chosen,
                               const std::string& message) {
  const std::size_t begin = message.find("--");
  const std::size_t equals = message.find(" = ");
  if (begin == std::string::npos || equals == std::string::npos || equals < begin) return message;
  const std::string name = message.substr(begin, equals - begin);
  for (const CLI::App* app : chosen) {
    const CLI::Option* const option = app->get_option_no_throw(name);
    if (option == nullptr) continue;
    return absl::StrCat(name, ": \"", message.substr(equals + 3), "\" is not ",
                        DescribeType(option->get_type_name()));
  }
  return message;
}

std::string Usage(const std::vector<const CLI::App*>& chosen) {
  const std::string name = FullName(chosen);
  std::string usage = absl::StrCat("usage: ", name, " [OPTIONS]");
  if (HasCommands(*chosen.back())) {
    return absl::StrCat(usage, " COMMAND; \"", name, " --help\" lists the commands\n");
  }
  for (const CLI::Option* option : chosen.back()->get_options()) {
    if (!option->get_positional()) continue;
    const std::string argument = option->get_name(/*positional=*/true);
    absl::StrAppend(&usage, option->get_required() ? " " : " [", argument,
                    option->get_items_expected_max() > 1 ? "..." : "",
                    option->get_required() ? "" : "]");
  }
  return absl::StrCat(usage, "; \"", name, " --help\" lists the options\n");
}

}  // namespace

std::string DescribeUsageError(const CLI::App& app, const CLI::Error& error) {
  const std::vector<const CLI::App*> chosen = ChosenCommands(app);
  const std::vector<std::string> remaining = app.remaining(/*recurse=*/true);
  const auto is = [&error](CLI::ExitCodes code) {
    return error.get_exit_code() == static_cast<int>(code);
  };
  std::string problem = error.what();
  if (HasCommands(*chosen.back()) && is(CLI::ExitCodes::RequiredError)) {
    const auto word = std::find_if(remaining.begin(), remaining.end(), [](const std::string& one) {
      return !absl::StartsWith(one, "-");
    });
    if (word != remaining.end()) {
      problem = DescribeUnknownCommand(app, *word);
    } else if (!remaining.empty()) {
      problem = DescribeUnknownOption(chosen, remaining.front());
    } else {
      problem = "a command is required";
    }
  } else if (is(CLI::ExitCodes::ConversionError)) {
    problem = DescribeConversion(chosen, problem);
  } else if (is(CLI::ExitCodes::ExtrasError) && !remaining.empty()) {
    problem = DescribeExtra(chosen, remaining.front());
  }
  return absl::StrCat(FullName(chosen), ": ", problem, "\n", Usage(chosen));
}

}  // namespace quire::server
