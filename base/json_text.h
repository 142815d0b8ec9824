#pragma once

// Serializes JSON for everything that the program sends, logs or prints.
//
// Place:      in base/ because the log uses it. nlohmann-json writes the text, and
//             formats/json_value.h parses JSON. Three files need other output and write JSON
//             themselves: text/chat/jinja/json.h (as Python's json.dumps does),
//             server/config/layered_config.cc (as configuration files do) and
//             text/tools/json_object_writer.h (joins members that are JSON already).
// Invariants: the text is one line of valid UTF-8 and valid JSON. Invalid bytes become U+FFFD; NaN
//             and infinities become null.
// Threads:    pure functions.

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "absl/strings/string_view.h"

namespace quire {

std::string JsonText(const nlohmann::json& value);
// Writes the keys in insertion order.
std::string JsonText(const nlohmann::ordered_json& value);

// Returns `text` as a JSON string, quotes included.
std::string JsonQuoted(absl::string_view text);

}  // namespace quire
