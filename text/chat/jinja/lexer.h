#pragma once

// Template text to tokens, with all rules about white space around tags applied.
//
// Place:      below the parser.
// Invariants: as jinja2 with trim_blocks and lstrip_blocks: the newline behind a block is taken,
//             and so are blanks in front of a block that begins its line; `-` takes all white
//             space, `+` none. Line ends become "\n", and one at the end of the template goes.
// Threads:    pure.
// Source:     documentation of jinja2 3.1, "Whitespace Control", and its behaviour by experiment.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "text/chat/jinja/ast.h"

namespace quire::text::jinja {

enum class TokenType : std::uint8_t {
  kData,
  kOutputBegin,
  kOutputEnd,
  kBlockBegin,
  kBlockEnd,
  kName,
  kInteger,
  kFloat,
  kString,
  kOperator,
  kEnd  // of the template
};

struct Token {
  TokenType type = TokenType::kEnd;
  Position position;
  std::string text;  // data, name, operator, or the value of a string
  std::int64_t integer = 0;
  double number = 0;
};

// REQUIRES: `source` is UTF-8. The last token is kEnd. Errors: INVALID_ARGUMENT "line 3, column 7:
// ...".
absl::StatusOr<std::vector<Token>> Tokenize(absl::string_view source);

// INVALID_ARGUMENT "line 3, column 7: <problem>".
absl::Status ErrorAt(Position position, absl::string_view problem);

}  // namespace quire::text::jinja
