#pragma once

// Manual pages in the format of man(7).
//
// Threads: any; plain values.

#include <string>
#include <utility>
#include <vector>

#include "tools/quire/cli_tree.h"

namespace quire::client {

// Text of a page in addition to the command line.
struct ManualText {
  int section = 1;
  std::string date = {};                 // YYYY-MM-DD
  std::string version = {};              // version of the program
  std::string summary;                   // for NAME, one line
  std::vector<std::string> description;  // paragraphs
  // Further sections: title, then terms with their explanations.
  std::vector<std::pair<std::string, std::vector<std::pair<std::string, std::string>>>> lists;
  std::string configuration = {};  // literal text under CONFIGURATION; empty: no such section
  std::string see_also;
};

std::string ManualPage(const CliCommand& program, const ManualText& text);

}  // namespace quire::client
