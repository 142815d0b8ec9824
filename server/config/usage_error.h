#pragma once

// Messages about wrong command lines, for quired and quire.
//
// Threads: the main thread.

#include <string>

namespace CLI {
class App;
class Error;
}  // namespace CLI

namespace quire::server {

// Returns the message for `error`, which CLI11 threw while it parsed the command line of `app`. The
// message names the command and the argument, suggests similar commands and options, and ends with
// the usage of the command and a newline.
std::string DescribeUsageError(const CLI::App& app, const CLI::Error& error);

}  // namespace quire::server
