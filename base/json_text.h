#pragma once

// The one writer of JSON: what the program sends, logs and prints.
//
// Place:      in base/ for the log; nlohmann-json writes. Readers are formats/json_value.h.
//             Others write where numbers or spaces must be as another program has them:
//             text/chat/jinja/json.h (Python's json.dumps), server/config/layered_config.cc (values
//             as configuration files spell them, strings by JsonQuoted).
// Invariants: the text is one line of valid UTF-8 and valid JSON: bytes that are not UTF-8 become
//             U+FFFD, NaN and infinities become null.
// Threads:    pure.

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "absl/strings/string_view.h"

namespace quire {

std::string JsonText(const nlohmann::json& value);
// Keys in the order in which they were added.
std::string JsonText(const nlohmann::ordered_json& value);

// A string with its quotes.
std::string JsonQuoted(absl::string_view text);

}  // namespace quire
