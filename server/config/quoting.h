#pragma once

// Quotes texts so that YAML and a shell do not change them. In YAML, `[` begins a list and `*`
// begins an alias. A shell removes one pair of quotes.
//
// Place:   for messages of yaml_reader.h and validator.h.
// Threads: any; no state.

#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace quire::server {

// Returns the text that sets the key `path` to `texts` in a layer, which is given as Origin::layer:
// `--set 'a.b=["[::1]:80"]'`, `QUIRE__A__B='["[::1]:80"]'`, `'"[a]/b"'` for the argument MODEL, or
// `b: ["[::1]:80"]` for a file.
// REQUIRES: texts.size() == 1 unless is_list.
std::string WriteTexts(absl::string_view layer, absl::string_view path,
                       const std::vector<std::string>& texts, bool is_list);

// Guesses the texts that the author of `value` intended. Removes surrounding brackets and quotes.
// If `is_list`, splits the value at commas. REQUIRES: `value` is not YAML of the expected kind.
std::vector<std::string> GuessTexts(absl::string_view value, bool is_list);

// If `text` is an IPv6 address without brackets or without a port, returns the listen address that
// its author probably means. Otherwise returns "".
std::string GuessIpv6Address(absl::string_view text);

}  // namespace quire::server
