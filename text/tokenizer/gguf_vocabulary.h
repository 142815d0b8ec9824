#pragma once

// The tokenizer metadata of a GGUF file, read but not validated.
//
// Place:      between GgufFile and BuildGgufPipeline.
// Invariants: only the types are checked here; BuildGgufPipeline checks values and consistency.
// Threads:    a value type; one thread at a time per object.
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

// The file format defines the numbers.
enum class GgufTokenType : std::int32_t {
  kNormal = 1,
  kUnknown = 2,
  kControl = 3,
  kUserDefined = 4,
  kUnused = 5,
  kByte = 6,
};

// The keys start with "tokenizer.ggml."; absent keys are nullopt.
struct GgufVocabulary {
  std::string label;                                     // prefix of every message
  absl::string_view model;                               // "gpt2", "llama" or "gemma4"
  std::optional<absl::string_view> pre;                  // name of the pre-tokenizer, for gpt2
  std::vector<absl::string_view> tokens;                 // indexed by id
  std::optional<std::vector<float>> scores;              // indexed by id
  std::optional<std::vector<std::int32_t>> token_types;  // GgufTokenType, indexed by id
  std::optional<std::vector<absl::string_view>> merges;  // "left right", highest priority first
  std::optional<std::int32_t> bos_id, eos_id, pad_id, unk_id;
  std::optional<bool> add_bos, add_eos, add_space_prefix;
};

// Returns INVALID_ARGUMENT with the key if it is missing, or if its value has a wrong type, is not
// UTF-8, or is an id without a token. Returns UNIMPLEMENTED for unsupported keys that would change
// ids.
absl::StatusOr<GgufVocabulary> ReadGgufVocabulary(const formats::GgufFile& file);

}  // namespace quire::text
