#pragma once

// What a GGUF file's metadata say about the tokenizer, under plain names and not yet judged.
//
// Place:      between GgufFile and the tokenizer that is built from it.
// Invariants: none beyond the types; BuildGgufPipeline checks values and how they fit together.
// Threads:    a value.
// Lifetime:   the strings are views of the file's bytes.
// Source:     github.com/ggml-org/ggml, docs/gguf.md, section "Tokenizer".

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "formats/gguf.h"

namespace quire::text {

// As numbered in files.
enum class GgufTokenType : std::int32_t {
  kNormal = 1,
  kUnknown = 2,
  kControl = 3,
  kUserDefined = 4,
  kUnused = 5,
  kByte = 6,
};

// Keys begin with "tokenizer.ggml."; absent keys are empty optionals.
struct GgufVocabulary {
  std::string label;                                     // begins every message
  absl::string_view model;                               // "gpt2", "llama"
  std::optional<absl::string_view> pre;                  // how gpt2 splits text
  std::vector<absl::string_view> tokens;                 // by id
  std::optional<std::vector<float>> scores;              // of each token
  std::optional<std::vector<std::int32_t>> token_types;  // GgufTokenType of each token
  std::optional<std::vector<absl::string_view>> merges;  // "left right", best first
  std::optional<std::int32_t> bos_id, eos_id, pad_id, unk_id;
  std::optional<bool> add_bos, add_eos, add_space_prefix;
};

// Errors: INVALID_ARGUMENT that names the key: missing, wrong type, not UTF-8, an id that no token
// has; UNIMPLEMENTED for keys that would change ids and are not followed here.
absl::StatusOr<GgufVocabulary> ReadGgufVocabulary(const formats::GgufFile& file);

}  // namespace quire::text
