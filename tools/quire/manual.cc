#include "tools/quire/manual.h"

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"

namespace quire::client {
namespace {

// Escapes the characters of a line that have a meaning in roff: backslashes, hyphens, and a period
// or an apostrophe at the start.
std::string Escape(absl::string_view text) {
  std::string escaped = absl::StrReplaceAll(text, {{"\\", "\\e"}, {"-", "\\-"}});
  if (!escaped.empty() && (escaped[0] == '.' || escaped[0] == '\'')) escaped.insert(0, "\\&");
  return escaped;
}

std::string Bold(absl::string_view text) {
  return absl::StrCat("\\fB", Escape(text), "\\fR");
}
std::string Italic(absl::string_view text) {
  return absl::StrCat("\\fI", Escape(text), "\\fR");
}

// Returns a term such as "--choices INT", or the name of a positional argument.
std::string FormatTerm(const CliOption& option) {
  if (option.names.empty()) return Italic(option.positional);
  const std::string names = absl::StrJoin(
      option.names, ", ",
      [](std::string* out, const std::string& name) { absl::StrAppend(out, Bold(name)); });
  if (option.is_flag()) return names;
  return absl::StrCat(names, " ", Italic(option.value));
}

void AppendOptions(const CliCommand& command, std::string* page) {
  for (const CliOption& option : command.options) {
    absl::StrAppend(page, ".TP\n", FormatTerm(option), "\n", Escape(option.description));
    if (!option.choices.empty()) {
      absl::StrAppend(page, "; one of ", Escape(absl::StrJoin(option.choices, ", ")));
    }
    if (!option.default_value.empty()) {
      absl::StrAppend(page, " (default: ", Escape(option.default_value), ")");
    }
    absl::StrAppend(page, option.is_required ? "; required\n" : "\n");
  }
}

std::string Synopsis(const CliCommand& command) {
  std::string line = command.options.empty() ? "" : absl::StrCat(" [", Italic("options"), "]");
  for (const CliOption& option : command.options) {
    if (!option.names.empty()) continue;
    const std::string name = Italic(option.positional);
    absl::StrAppend(&line, " ", option.is_required ? name : absl::StrCat("[", name, "]"));
  }
  return line;
}

void AppendCommands(const CliCommand& program, std::string* page) {
  if (program.commands.empty()) return;
  absl::StrAppend(page, ".SH COMMANDS\n");
  for (const CliCommand& command : program.commands) {
    absl::StrAppend(page, ".SS ", Escape(command.name), "\n", Bold(command.name), Synopsis(command),
                    "\n.PP\n", Escape(command.description), "\n");
    AppendOptions(command, page);
  }
}

}  // namespace

std::string ManualPage(const CliCommand& program, const ManualText& text) {
  std::string page = absl::StrCat(".TH ", absl::AsciiStrToUpper(program.name), " ", text.section,
                                  " ", text.date, " \"quire ", text.version, "\"\n");
  absl::StrAppend(&page, ".SH NAME\n", program.name, " \\- ", Escape(text.summary), "\n");
  absl::StrAppend(&page, ".SH SYNOPSIS\n", Bold(program.name), Synopsis(program));
  if (!program.commands.empty()) {
    absl::StrAppend(&page, " ", Italic("command"), " [", Italic("argument"), " ...]");
  }
  absl::StrAppend(&page, "\n.SH DESCRIPTION\n");
  for (std::size_t i = 0; i < text.description.size(); ++i) {
    absl::StrAppend(&page, i == 0 ? "" : ".PP\n", Escape(text.description[i]), "\n");
  }
  absl::StrAppend(&page, ".SH OPTIONS\n");
  AppendOptions(program, &page);
  AppendCommands(program, &page);
  for (const auto& [title, entries] : text.lists) {
    absl::StrAppend(&page, ".SH ", title, "\n");
    for (const auto& [term, explanation] : entries) {
      absl::StrAppend(&page, ".TP\n", Bold(term), "\n", Escape(explanation), "\n");
    }
  }
  if (!text.configuration.empty()) {
    absl::StrAppend(&page, ".SH CONFIGURATION\n.EX\n");
    for (const absl::string_view line : absl::StrSplit(text.configuration, '\n')) {
      absl::StrAppend(&page, Escape(line), "\n");
    }
    absl::StrAppend(&page, ".EE\n");
  }
  absl::StrAppend(&page, ".SH SEE ALSO\n", text.see_also, "\n");
  return page;
}

}  // namespace quire::client
