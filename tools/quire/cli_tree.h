#pragma once

// What a program's command line offers, read from CLI11's own description of it. Completion scripts
// and manual pages are made of this, so they cannot miss a command or an option.
//
// Threads: none of its own; plain values.

#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace quire::client {

struct CliOption {
  std::vector<std::string> names;    // as typed: "-n", "--choices"; empty: a positional
  std::string positional;            // name of a positional
  std::string value;                 // kind of its value, such as "TEXT"; empty: a flag
  std::vector<std::string> choices;  // the only values; empty: any. A flag takes them after "="
  std::string description;
  std::string default_value;  // as help prints it; empty: none
  bool is_required = false;

  bool is_flag() const { return value.empty(); }
};

struct CliCommand {
  std::string name;
  std::string description;
  std::vector<CliOption> options = {};  // in the order of help; those of a parent are not repeated
  std::vector<CliCommand> commands = {};
};

// `app` with its sub-commands; what help hides is left out.
CliCommand ReadCommandLine(const CLI::App& app);

}  // namespace quire::client
