#pragma once

// Writes the grammar of a schema that was read: exactly its values, in canonical form
// (docs/structured_output.md): keys in the order of the schema, bounded white space.
//
// Place:      above schema_check and grammar_text.
// Invariants: every rule has a text, so that no allowed token leads to where none is.
// Threads:    one at a time.
// Lifetime:   of one call.

#include <optional>
#include <span>
#include <vector>

#include "engine/constraint/constraint.h"
#include "engine/constraint/grammar_text.h"
#include "engine/constraint/schema_check.h"

namespace quire::engine {

// Expressions of `grammar`, which may refuse itself, for schemas of the document. REQUIRES:
// document.Check() was OK, and each of the schemas has a value.
std::vector<GrammarText::Expression> WriteSchemas(const SchemaDocument& document,
                                                  std::span<const SchemaId> schemas,
                                                  JsonWhitespace whitespace, GrammarText* grammar);

// The objects of the root as keyword arguments of Python, `a=1, b=[True, None]`, with those names
// alone that the schema declares or requires. Values are literals of Python: strings in quotes of
// either kind, escaped as JSON escapes them, which Python reads alike. Absent: no object of the
// root has such names alone. REQUIRES: as above, and the names can be written as they are.
std::optional<GrammarText::Expression> WritePythonArguments(const SchemaDocument& document,
                                                            JsonWhitespace whitespace,
                                                            GrammarText* grammar);

}  // namespace quire::engine
