#pragma once

// Writes the grammar of tool-call arguments, for tool formats that put each argument between
// markers, after its key. Strings are written without quotes if the schema allows only strings and
// null; other values are JSON.
//
// Place:      next to tag_grammar; above the reader of schemas and free_text.
// Invariants: text/tools reads the written values back as the same values. Schemas for which this
//             cannot be ensured are rejected: strings with keywords other than `enum` and `const`,
//             strings mixed with other types, names with characters other than [A-Za-z0-9_.-], and
//             JSON values that need `<` or a pattern.
// Threads:    pure functions.

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/constraint/constraint.h"
#include "engine/constraint/grammar_text.h"
#include "engine/constraint/schema_check.h"
#include "engine/constraint/special_tokens.h"
#include "text/tools/tool_format.h"

namespace quire::engine {

struct MarkedSpec {
  const std::string& schema;         // schema of all arguments, an object
  const SchemaDocument& document;    // parsed from the same text; Check() was OK
  const text::CallWriting& writing;  // key_begin is not empty
  JsonWhitespace whitespace;
  // With UnenforcedPolicy::kAnnotate: receives the keywords of strings that are not enforced, each
  // prefixed with `field`. Null: such keywords are rejected.
  std::vector<std::string>* unenforced = nullptr;
  absl::string_view field = {};
};

// Returns an error unless `name` is a non-empty sequence of [A-Za-z0-9_.-].
absl::Status CheckArgumentName(absl::string_view name);

absl::StatusOr<GrammarText::Expression> WriteMarkedArguments(const MarkedSpec& spec,
                                                             const SpecialTokens& special,
                                                             GrammarText* grammar);

}  // namespace quire::engine
