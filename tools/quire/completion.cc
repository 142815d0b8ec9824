#include "tools/quire/completion.h"

#include <functional>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/string_view.h"

namespace quire::client {
namespace {

using Words = std::vector<std::string>;

// Calls `visit` with every command, the program first, and the words that lead to it, such as
// "bench"; "" for the program.
void ForEachCommand(const CliCommand& command, const std::string& path,
                    const std::function<void(const CliCommand&, const std::string&)>& visit) {
  visit(command, path);
  for (const CliCommand& child : command.commands) {
    ForEachCommand(child, path.empty() ? child.name : absl::StrCat(path, " ", child.name), visit);
  }
}

std::string Head(const std::string& name, absl::string_view shell) {
  return absl::StrCat("# ", shell, " completion of ", name, ", made by `quire completion ", shell,
                      name == "quire" ? "" : absl::StrCat(" --program ", name), "`\n");
}

// What may stand where no option does.
Words ArgumentsOf(const CliCommand& command) {
  Words words;
  for (const CliCommand& child : command.commands) words.push_back(child.name);
  for (const CliOption& option : command.options) {
    if (option.names.empty()) {
      words.insert(words.end(), option.choices.begin(), option.choices.end());
    }
  }
  return words;
}

void AppendNames(const CliCommand& command, Words* names) {
  for (const CliOption& option : command.options) {
    names->insert(names->end(), option.names.begin(), option.names.end());
  }
}

// One arm of a bash `case` over "COMMAND OPTION", for each name of `option`. Options of the program
// may stand after any command.
std::string Arm(const std::string& path, const CliOption& option, absl::string_view body) {
  const std::string begin = path.empty() ? "*\" " : absl::StrCat("\"", path, " ");
  const std::string names = absl::StrJoin(option.names, absl::StrCat("\"|", begin));
  return absl::StrCat("            ", begin, names, "\") ", body, " ;;\n");
}

constexpr absl::string_view kBash = R"sh(_@NAME@() {
    local current=${COMP_WORDS[COMP_CWORD]} command="" option="" last="" words="" options="" word
    local before=("${COMP_WORDS[@]:1:COMP_CWORD-1}")
    if [[ $current == "=" ]]; then before+=("="); current=""; fi
    # Which command it is, and which option waits for its value. Bash makes three words of --a=b.
    for word in "${before[@]}"; do
        if [[ $word == "=" ]]; then option=$last; continue; fi
        if [[ -n $option ]]; then option="" last=""; continue; fi
        last=$word
        case "$command $word" in
@STEPS@        esac
    done
    if [[ -n $option ]]; then
        case "$command $option" in
@VALUES@        esac
    else
        case "$command" in
@WORDS@        esac
        if [[ $current == -* ]]; then words=$options; fi
    fi
    COMPREPLY=($(compgen -W "$words" -- "$current"))
}
complete -o bashdefault -o default -F _@NAME@ @NAME@
)sh";

// In single quotes of bash and zsh.
std::string Quote(absl::string_view text) {
  return absl::StrCat("'", absl::StrReplaceAll(text, {{"'", "'\\''"}}), "'");
}

// Between two specifications.
constexpr absl::string_view kZshBreak = " \\\n            ";

// Text inside a specification of zsh's _arguments and _describe.
std::string ZshText(absl::string_view text) {
  return absl::StrReplaceAll(text, {{"\\", "\\\\"}, {":", "\\:"}, {"[", "\\["}, {"]", "\\]"}});
}

std::string ZshAction(const CliOption& option) {
  if (option.choices.empty()) return "_default";
  return absl::StrCat("(", absl::StrJoin(option.choices, " "), ")");
}

// What _arguments is told of one option, once for each of its names.
std::string ZshSpec(const CliOption& option) {
  const bool takes_value = !option.is_flag();
  std::string rest = absl::StrCat("[", ZshText(option.description), "]");
  if (takes_value) absl::StrAppend(&rest, ":", ZshText(option.value), ":", ZshAction(option));
  if (!takes_value && !option.choices.empty()) {
    absl::StrAppend(&rest, "::value:", ZshAction(option));
  }
  Words specs;
  for (const std::string& name : option.names) {
    const bool is_long = absl::StartsWith(name, "--");
    const char* const mark =
        takes_value ? (is_long ? "=" : "+") : (is_long && !option.choices.empty() ? "=-" : "");
    specs.push_back(Quote(absl::StrCat("*", name, mark, rest)));
  }
  return absl::StrJoin(specs, kZshBreak);
}

// What _arguments is told of a command: its own options and those that may stand after any command.
// The last positional takes all words that are left.
std::string ZshSpecs(const CliCommand& program, const CliCommand& command) {
  std::vector<const CliOption*> options, positionals;
  for (const CliOption& option : program.options) {
    if (!option.names.empty()) options.push_back(&option);
  }
  for (const CliOption& option : command.options) {
    if (option.names.empty()) positionals.push_back(&option);
    if (!option.names.empty() && &program != &command) options.push_back(&option);
  }
  std::string specs;
  for (const CliOption* option : options) absl::StrAppend(&specs, kZshBreak, ZshSpec(*option));
  for (std::size_t i = 0; i < positionals.size(); ++i) {
    const std::string place = i + 1 == positionals.size() ? "*" : absl::StrCat(i + 1);
    absl::StrAppend(&specs, kZshBreak,
                    Quote(absl::StrCat(place, ":", ZshText(positionals[i]->positional), ":",
                                       ZshAction(*positionals[i]))));
  }
  return specs;
}

// In single quotes of fish.
std::string FishQuote(absl::string_view text) {
  return absl::StrCat("'", absl::StrReplaceAll(text, {{"\\", "\\\\"}, {"'", "\\'"}}), "'");
}

}  // namespace

std::string BashCompletion(const CliCommand& program) {
  std::string steps, values, words;
  ForEachCommand(program, "", [&](const CliCommand& command, const std::string& path) {
    for (const CliCommand& child : command.commands) {
      const std::string to = absl::StrCat(path, path.empty() ? "" : " ", child.name);
      absl::StrAppend(&steps, "            \"", path, " ", child.name, "\") command=\"", to,
                      "\" ;;\n");
    }
    Words names;
    AppendNames(program, &names);
    if (&command != &program) AppendNames(command, &names);
    for (const CliOption& option : command.options) {
      if (option.names.empty()) continue;
      if (!option.is_flag()) absl::StrAppend(&steps, Arm(path, option, "option=$word"));
      if (option.choices.empty()) continue;
      const std::string list = absl::StrJoin(option.choices, " ");
      absl::StrAppend(&values, Arm(path, option, absl::StrCat("words=\"", list, "\"")));
    }
    absl::StrAppend(&words, "            \"", path, "\") words=\"",
                    absl::StrJoin(ArgumentsOf(command), " "), "\" options=\"",
                    absl::StrJoin(names, " "), "\" ;;\n");
  });
  return Head(program.name, "bash") + absl::StrReplaceAll(kBash, {{"@NAME@", program.name},
                                                                  {"@STEPS@", steps},
                                                                  {"@VALUES@", values},
                                                                  {"@WORDS@", words}});
}

std::string ZshCompletion(const CliCommand& program) {
  const std::string& name = program.name;
  std::string text = absl::StrCat("#compdef ", name, "\n", Head(name, "zsh"), "_", name, "() {\n");
  if (program.commands.empty()) {
    absl::StrAppend(&text, "    _arguments", ZshSpecs(program, program), "\n");
  } else {
    absl::StrAppend(&text, "    local curcontext=$curcontext state line\n",
                    "    local -a commands=(\n");
    for (const CliCommand& command : program.commands) {
      absl::StrAppend(&text, "        ",
                      Quote(absl::StrCat(command.name, ":", command.description)), "\n");
    }
    absl::StrAppend(&text, "    )\n    _arguments -C", ZshSpecs(program, program),
                    " \\\n            '1: :->command' '*:: :->argument'\n",
                    "    case $state in\n    command) _describe command commands ;;\n",
                    "    argument)\n        case $line[1] in\n");
    for (const CliCommand& command : program.commands) {
      absl::StrAppend(&text, "        ", command.name, ") _arguments", ZshSpecs(program, command),
                      " ;;\n");
    }
    absl::StrAppend(&text, "        esac ;;\n    esac\n");
  }
  // Read by zsh itself from its folder of functions, or by the user with `source`.
  absl::StrAppend(&text, "}\nif [[ $funcstack[1] == _", name, " ]]; then _", name,
                  " \"$@\"; else compdef _", name, " ", name, "; fi\n");
  return text;
}

std::string FishCompletion(const CliCommand& program) {
  Words commands;
  for (const CliCommand& command : program.commands) commands.push_back(command.name);
  const std::string list = absl::StrJoin(commands, " ");
  std::string text = Head(program.name, "fish");
  const std::string begin = absl::StrCat("complete -c ", program.name);
  for (const CliCommand& command : program.commands) {
    absl::StrAppend(&text, begin, " -n 'not __fish_seen_subcommand_from ", list, "' -f -a ",
                    command.name, " -d ", FishQuote(command.description), "\n");
  }
  ForEachCommand(program, "", [&](const CliCommand& command, const std::string& path) {
    for (const CliOption& option : command.options) {
      std::string line = begin;
      if (!path.empty()) absl::StrAppend(&line, " -n '__fish_seen_subcommand_from ", path, "'");
      for (const std::string& name : option.names) {
        const bool is_long = absl::StartsWith(name, "--");
        absl::StrAppend(&line, is_long ? " -l " : " -s ", name.substr(is_long ? 2 : 1));
      }
      if (option.choices.empty()) {
        if (option.names.empty()) continue;  // fish offers file names without being told
        if (!option.is_flag()) line += " -r";
      } else {
        absl::StrAppend(&line, option.is_flag() ? " -a " : " -x -a ",
                        FishQuote(absl::StrJoin(option.choices, " ")));
      }
      absl::StrAppend(&text, line, " -d ", FishQuote(option.description), "\n");
    }
  });
  return text;
}

}  // namespace quire::client
