#pragma once

// The description of a command line, read from CLI11. Completion scripts and manual pages are
// generated from it, so they contain every command and option.
//
// Threads: any; plain values.

#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace quire::client {

struct CliOption {
  std::vector<std::string> names;    // such as "-n", "--choices"; empty for a positional
  std::string positional;            // name if it is a positional
  std::string value;                 // type of the value, such as "TEXT"; empty for a flag
  std::vector<std::string> choices;  // allowed values, for a flag those after "="; empty: any
  std::string description;
  std::string default_value;  // as printed by --help; empty: none
  bool is_required = false;

  bool is_flag() const { return value.empty(); }
};

struct CliCommand {
  std::string name;
  std::string description;
  std::vector<CliOption> options = {};  // in the order of --help, without options of the parent
  std::vector<CliCommand> commands = {};
};

// Reads `app` and its subcommands, without those that --help hides.
CliCommand ReadCommandLine(const CLI::App& app);

}  // namespace quire::client
