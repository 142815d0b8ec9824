#pragma once

// Template text to its syntax tree.
//
// Place:      between lexer and interpreter.
// Invariants: what parses is inside the subset of docs/tokenizers.md; everything else is refused
//             here, with line and column. Statements nest up to kMaxNesting deep, for statements up
//             to kMaxLoops, expressions up to kMaxExpressionDepth, so every walk of the tree is
//             bounded.
// Threads:    pure.
// Source:     documentation of jinja2 3.1, "Template Designer Documentation"; precedence of
//             operators by experiment.

#include <cstddef>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "text/chat/jinja/ast.h"

namespace quire::text::jinja {

inline constexpr std::size_t kMaxTemplateBytes = 1 << 20;
inline constexpr int kMaxNesting = 64;
inline constexpr int kMaxLoops = 16;
inline constexpr int kMaxExpressionDepth = 200;

struct ParsedTemplate {
  Body body;
  // "line 3, column 7: the filter 'x' is not supported", for filters, tests and methods in branches
  // of `if`. Executing one is an error of the rendering.
  std::vector<std::string> warnings;
};

// Errors: INVALID_ARGUMENT "line 3, column 7: ...". REQUIRES: `source` is UTF-8.
absl::StatusOr<ParsedTemplate> Parse(absl::string_view source);

}  // namespace quire::text::jinja
