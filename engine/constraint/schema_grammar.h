#pragma once

// Writes the grammar of a schema: exactly its values in canonical form (docs/structured_output.md),
// with keys in the order of the schema and bounded white space.
//
// Place:      above schema_check and grammar_text.
// Invariants: every rule matches some text, so that an allowed token never leads to a dead end.
// Threads:    one thread at a time.
// Lifetime:   one call.

#include <optional>
#include <span>
#include <vector>

#include "engine/constraint/constraint.h"
#include "engine/constraint/grammar_text.h"
#include "engine/constraint/schema_check.h"

namespace quire::engine {

// Returns expressions of `grammar` for schemas of the document. If these make the grammar too
// large, GrammarText::Finish rejects it.
// REQUIRES: document.Check() was OK, and each of the schemas accepts some value.
std::vector<GrammarText::Expression> WriteSchemas(const SchemaDocument& document,
                                                  std::span<const SchemaId> schemas,
                                                  JsonWhitespace whitespace, GrammarText* grammar);

// Returns the objects of the root as Python keyword arguments, `a=1, b=[True, None]`, with only the
// names that the schema declares or requires. Values are Python literals: strings have quotes of
// either kind and JSON escapes, which Python reads in the same way. Returns nullopt if every object
// has another name. REQUIRES: as above, and the names are valid argument names.
std::optional<GrammarText::Expression> WritePythonArguments(const SchemaDocument& document,
                                                            JsonWhitespace whitespace,
                                                            GrammarText* grammar);

}  // namespace quire::engine
