#pragma once

// What must hold of any tokenizer that was loaded, whatever its file said.
//
// Place:      targets that read tokenizers.
// Threads:    one.

#include "text/tokenizer/tokenizer.h"

namespace quire::fuzz {

// Encodes, decodes and streams a text of many scripts; ends the process when the ways differ.
void ExerciseTokenizer(const text::Tokenizer& tokenizer);

}  // namespace quire::fuzz
