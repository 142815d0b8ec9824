#pragma once

// Parses template text to a syntax tree.
//
// Place:      between lexer and interpreter.
// Invariants: accepts the subset of Jinja in docs/tokenizers.md and rejects everything else with
//             line and column. Statements nest at most kMaxNesting deep, loops kMaxLoopNesting and
//             expressions kMaxExpressionDepth, so every traversal of the tree is bounded.
// Threads:    pure functions.
// Source:     documentation of jinja2 3.1, "Template Designer Documentation". Operator precedence
//             follows the behavior of jinja2, because the documentation does not define it.

#include <cstddef>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "text/chat/jinja/ast.h"

namespace quire::text::jinja {

inline constexpr std::size_t kMaxTemplateBytes = 1 << 20;
inline constexpr int kMaxNesting = 64;
inline constexpr int kMaxLoopNesting = 16;
inline constexpr int kMaxExpressionDepth = 200;

struct ParsedTemplate {
  Body body;
  // One message for each unsupported filter, test or method inside an `if` statement or expression.
  // Rendering fails if it executes such a filter, test or method. Outside an `if`, Parse returns an
  // error for such a use.
  std::vector<std::string> warnings;
};

// Returns INVALID_ARGUMENT "line 3, column 7: ..." on errors. REQUIRES: `source` is UTF-8.
absl::StatusOr<ParsedTemplate> Parse(absl::string_view source);

}  // namespace quire::text::jinja
