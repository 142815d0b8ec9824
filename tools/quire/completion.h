#pragma once

// Shell completion scripts for a command line. The scripts need no other package.
//
// Threads: any; plain values.

#include <string>

#include "tools/quire/cli_tree.h"

namespace quire::client {

std::string BashCompletion(const CliCommand& program);
std::string ZshCompletion(const CliCommand& program);
std::string FishCompletion(const CliCommand& program);

}  // namespace quire::client
