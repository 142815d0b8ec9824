#include "tools/quire/cli_tree.h"

#include <CLI/CLI.hpp>
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"

namespace quire::client {
namespace {

// CLI11 keeps the values of IsMember only in the type name: "TEXT:{yaml,json}".
std::vector<std::string> ParseChoices(absl::string_view type_name) {
  const std::size_t begin = type_name.find(":{");
  const std::size_t end = type_name.rfind('}');
  if (begin == absl::string_view::npos || end == absl::string_view::npos) return {};
  return absl::StrSplit(type_name.substr(begin + 2, end - begin - 2), ',');
}

CliOption ReadOption(const CLI::Option& option) {
  CliOption result;
  for (const std::string& name : option.get_snames()) {
    result.names.push_back(absl::StrCat("-", name));
  }
  for (const std::string& name : option.get_lnames()) {
    result.names.push_back(absl::StrCat("--", name));
  }
  if (result.names.empty()) result.positional = option.get_name(/*positional=*/true);
  const std::string type_name = option.get_type_name();
  if (option.get_items_expected_max() > 0) {
    result.value = type_name.substr(0, type_name.find(':'));
    if (result.value.empty()) result.value = "VALUE";
  }
  result.choices = ParseChoices(type_name);
  result.description = option.get_description();
  result.default_value = option.get_default_str();
  result.is_required = option.get_required();
  return result;
}

bool HasName(const std::vector<CliOption>& options, const CliOption& wanted) {
  return !wanted.names.empty() && std::any_of(options.begin(), options.end(), [&](const auto& one) {
    return one.names == wanted.names;
  });
}

CliCommand Read(const CLI::App& app, const std::vector<CliOption>& parent_options) {
  CliCommand result{.name = app.get_name(), .description = app.get_description()};
  for (const CLI::Option* option : app.get_options()) {
    if (option->get_group().empty()) continue;
    CliOption read = ReadOption(*option);
    if (!HasName(parent_options, read)) result.options.push_back(std::move(read));
  }
  std::vector<CliOption> known = parent_options;
  known.insert(known.end(), result.options.begin(), result.options.end());
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) {
    if (!command->get_group().empty()) result.commands.push_back(Read(*command, known));
  }
  return result;
}

}  // namespace

CliCommand ReadCommandLine(const CLI::App& app) {
  return Read(app, {});
}

}  // namespace quire::client
