#pragma once

// How texts are written so that YAML and a shell leave them as they are: `[` begins a list and `*`
// an alias in YAML, and a shell removes one pair of quotes.
//
// Place:   for messages of yaml_reader.h and validator.h.
// Threads: pure.

#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace quire::server {

// Returns a setting of the key `path` to `texts` as its layer has it, where `layer` is
// Origin::layer:
// `--set 'a.b=["[::1]:80"]'`, `QUIRE__A__B='["[::1]:80"]'`, or `b: ["[::1]:80"]` for a file.
// REQUIRES: texts.size() == 1 unless is_list.
std::string WriteTexts(absl::string_view layer, absl::string_view path,
                       const std::vector<std::string>& texts, bool is_list);

// Returns the texts that the writer of `value`, which is not YAML of the kind that was expected,
// most likely meant: the parts between its commas if `is_list`, else one text. Brackets and quotes
// around them are removed.
std::vector<std::string> GuessTexts(absl::string_view value, bool is_list);

// Returns the listen address that the writer of `text` most likely meant if that is an IPv6 address
// without its brackets or without its port, else "".
std::string GuessIpv6Address(absl::string_view text);

}  // namespace quire::server
