#pragma once

// The filters of templates, which follow `|`.
//
// Place:      between values and the parser, which looks up names.
// Threads:    the table is constant.
// Source:     documentation of jinja2 3.1, "List of Builtin Filters"; tojson is json.dumps without
//             ASCII escapes, as Hugging Face transformers defines it.

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "text/chat/jinja/runtime.h"
#include "text/chat/jinja/value.h"

namespace quire::text::jinja {

struct FilterRow {
  absl::string_view name;
  absl::StatusOr<Value> (*run)(Runtime& runtime, const Value& value, const Arguments& arguments);
};

// Returns null when there is no such filter.
const FilterRow* FindFilter(absl::string_view name);

}  // namespace quire::text::jinja
