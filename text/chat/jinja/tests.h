#pragma once

// The tests of templates, which follow `is`.
//
// Place:      between values and the parser, which looks up names.
// Threads:    the table is constant.
// Source:     documentation of jinja2 3.1, "List of Builtin Tests".

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "text/chat/jinja/runtime.h"
#include "text/chat/jinja/value.h"

namespace quire::text::jinja {

struct TestRow {
  absl::string_view name;
  absl::StatusOr<bool> (*run)(Runtime& runtime, const Value& value, const Arguments& arguments);
};

// Returns null when there is no such test.
const TestRow* FindTest(absl::string_view name);

}  // namespace quire::text::jinja
