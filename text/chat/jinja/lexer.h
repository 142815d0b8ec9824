#pragma once

// Splits template text into tokens and applies the white-space rules of tags.
//
// Place:      below the parser.
// Invariants: as in jinja2 with trim_blocks and lstrip_blocks: a newline after a block is removed,
//             and so are blanks between the start of a line and a block. A `-` in a tag removes all
//             white space on that side of the tag, and a `+` keeps it. Line ends become "\n", and a
//             line end at the end of the template is removed.
// Threads:    pure functions.
// Source:     documentation of jinja2 3.1, "Whitespace Control", and its observed behaviour.

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
  kEnd  // end of the template
};

struct Token {
  TokenType type = TokenType::kEnd;
  Position position;
  std::string text;  // data, name, operator, or the decoded value of a string
  std::int64_t integer = 0;
  double number = 0;
};

// Returns the tokens; the last one is kEnd. Returns INVALID_ARGUMENT "line 3, column 7: ..." on
// errors. REQUIRES: `source` is UTF-8.
absl::StatusOr<std::vector<Token>> Tokenize(absl::string_view source);

// Returns INVALID_ARGUMENT "line 3, column 7: <problem>".
absl::Status ErrorAt(Position position, absl::string_view problem);

}  // namespace quire::text::jinja
