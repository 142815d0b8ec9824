#pragma once

// Maps the values of tokenizer.ggml.pre to pre-tokenizers, which split text before BPE.
//
// Place:      below BuildGgufPipeline.
// Invariants: a name maps to the pre-tokenizer of the tokenizer.json from which GGUF files with
//             this name are converted. Token ids therefore equal those of Hugging Face, even where
//             llama.cpp uses another pattern. For example, (?i:'s) here also matches an apostrophe
//             followed by U+017F.
// Threads:    pure functions.
// Source:     names: llama.cpp, src/llama-vocab.cpp; patterns: the models' own tokenizer.json.

#include <optional>
#include <string>

#include "absl/strings/string_view.h"

namespace quire::formats {

struct GgufSplit {
  std::string pre_tokenizer_json;  // value of "pre_tokenizer" in tokenizer.json
  bool ignore_merges = false;      // a piece that is in the vocabulary becomes one token
  bool adds_bos = false;           // default of tokenizer.ggml.add_bos_token
};

// Returns nullopt for an unsupported name.
std::optional<GgufSplit> FindGgufSplit(absl::string_view pre);

// Returns all names for messages: "gpt-2, qwen2, ...".
std::string GgufSplitNames();

}  // namespace quire::formats
