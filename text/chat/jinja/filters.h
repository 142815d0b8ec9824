#pragma once

// The filters that stand behind `|`.
//
// Place:      between values and the parser, which looks names up.
// Threads:    the table is constant.
// Source:     documentation of jinja2 3.1, "List of Builtin Filters"; tojson as Hugging Face
//             transformers sets it up: json.dumps without ASCII escapes.

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "text/chat/jinja/runtime.h"
#include "text/chat/jinja/value.h"

namespace quire::text::jinja {

struct FilterRow {
  absl::string_view name;
  absl::StatusOr<Value> (*run)(Runtime& runtime, const Value& value, const Arguments& arguments);
};

// Null when there is no such filter.
const FilterRow* FindFilter(absl::string_view name);

}  // namespace quire::text::jinja
