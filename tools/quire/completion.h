#pragma once

// Completion scripts of a command line, for three shells. Each is whole: bash needs no package.
//
// Threads: any; plain text out of plain values.

#include <string>

#include "tools/quire/cli_tree.h"

namespace quire::client {

std::string BashCompletion(const CliCommand& program);
std::string ZshCompletion(const CliCommand& program);
std::string FishCompletion(const CliCommand& program);

}  // namespace quire::client
