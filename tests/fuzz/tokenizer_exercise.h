#pragma once

// Invariants of any loaded tokenizer, whatever its file contains.
//
// Place:      targets that read tokenizers.
// Threads:    one.

#include "text/tokenizer/tokenizer.h"

namespace quire::fuzz {

// Encodes, decodes and streams a text of many scripts. Aborts if the results differ.
void ExerciseTokenizer(const text::Tokenizer& tokenizer);

}  // namespace quire::fuzz
