#pragma once

// Arguments of a tool that are written between markers, each with its key: strings as they are if
// the schema allows nothing else but null, other values as JSON.
//
// Place:      beside tag_grammar; above the reader of schemas and free_text.
// Invariants: what is written is read back by text/tools as the same values. A schema of which this
//             cannot be said is refused: a string with other keywords than `enum` and `const`, a
//             string among other types, names that are no words, and `<` or a pattern where it
//             would have to be in a value that is JSON.
// Threads:    pure.

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/constraint/constraint.h"
#include "engine/constraint/grammar_text.h"
#include "engine/constraint/schema_check.h"
#include "engine/constraint/special_tokens.h"
#include "text/tools/tool_format.h"

namespace quire::engine {

struct MarkedSpec {
  const std::string& schema;         // of all arguments, an object
  const SchemaDocument& document;    // of the same text; Check() was OK
  const text::CallWriting& writing;  // with a key_begin
  JsonWhitespace whitespace;
  // With UnenforcedPolicy::kAnnotate: gets the other keywords of strings, which are left out, each
  // behind the field of the schema. Null: they are refused.
  std::vector<std::string>* unenforced = nullptr;
  absl::string_view field = {};
};

absl::StatusOr<GrammarText::Expression> WriteMarkedArguments(const MarkedSpec& spec,
                                                             const SpecialTokens& special,
                                                             GrammarText* grammar);

}  // namespace quire::engine
