#pragma once

// How a byte-level GGUF vocabulary splits text: the pre-tokenizer behind each name of
// tokenizer.ggml.pre.
//
// Place:      below BuildGgufPipeline.
// Invariants: what a name stands for is the pre-tokenizer of the tokenizer.json that such files are
//             converted from, so ids are those of Hugging Face, also where llama.cpp's rewrite of a
//             pattern differs ((?i:'s) matches U+017F, Tekken's letters).
// Threads:    pure.
// Source:     names: llama.cpp, src/llama-vocab.cpp; patterns: the models' own tokenizer.json.

#include <optional>
#include <string>

#include "absl/strings/string_view.h"

namespace quire::formats {

struct GgufSplit {
  std::string pre_tokenizer_json;  // as under "pre_tokenizer" of tokenizer.json
  bool ignore_merges = false;      // a whole piece of the vocabulary wins before merging
  bool adds_bos = false;           // unless tokenizer.ggml.add_bos_token says otherwise
};

// Nothing for a name that is not supported.
std::optional<GgufSplit> FindGgufSplit(absl::string_view pre);

// All names, for messages: "gpt-2, qwen2, ...".
std::string GgufSplitNames();

}  // namespace quire::formats
