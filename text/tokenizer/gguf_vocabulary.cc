#include "text/tokenizer/gguf_vocabulary.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace quire::text {
namespace {

// Reads a token id if `key` exists.
absl::Status ReadId(const formats::GgufFile& file, absl::string_view key, std::size_t num_tokens,
                    std::optional<std::int32_t>* id) {
  QUIRE_ASSIGN_OR_RETURN(const std::optional<std::int64_t> value,
                         file.OptionalInteger(key, 0, static_cast<std::int64_t>(num_tokens) - 1));
  if (value) *id = static_cast<std::int32_t>(*value);
  return absl::OkStatus();
}

absl::Status UnsupportedKeyError(const formats::GgufFile& file, absl::string_view key) {
  return absl::UnimplementedError(
      absl::StrCat(file.label(), ": ", key, " changes the text and is not supported"));
}

// Rejects keys of SentencePiece's normalizer, which is not supported for GGUF files. Without the
// normalizer, the ids would differ.
absl::Status CheckNoUnsupportedKeys(const formats::GgufFile& file) {
  constexpr absl::string_view kRemoveSpaces = "tokenizer.ggml.remove_extra_whitespaces";
  constexpr absl::string_view kCharsMap = "tokenizer.ggml.precompiled_charsmap";
  QUIRE_ASSIGN_OR_RETURN(const std::optional<bool> removes, file.OptionalBool(kRemoveSpaces));
  if (removes.value_or(false)) return UnsupportedKeyError(file, kRemoveSpaces);
  if (file.Has(kCharsMap)) return UnsupportedKeyError(file, kCharsMap);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<GgufVocabulary> ReadGgufVocabulary(const formats::GgufFile& file) {
  GgufVocabulary v;
  v.label = file.label();
  QUIRE_ASSIGN_OR_RETURN(v.model, file.String("tokenizer.ggml.model"));
  QUIRE_ASSIGN_OR_RETURN(v.pre, file.OptionalString("tokenizer.ggml.pre"));
  QUIRE_ASSIGN_OR_RETURN(v.tokens, file.Strings("tokenizer.ggml.tokens"));
  if (v.tokens.empty()) return file.Error("tokenizer.ggml.tokens", "has no tokens");
  QUIRE_ASSIGN_OR_RETURN(v.scores, file.OptionalFloats("tokenizer.ggml.scores"));
  QUIRE_ASSIGN_OR_RETURN(v.token_types, file.OptionalIntegers("tokenizer.ggml.token_type"));
  QUIRE_ASSIGN_OR_RETURN(v.merges, file.OptionalStrings("tokenizer.ggml.merges"));
  const std::size_t n = v.tokens.size();
  QUIRE_RETURN_IF_ERROR(ReadId(file, "tokenizer.ggml.bos_token_id", n, &v.bos_id));
  QUIRE_RETURN_IF_ERROR(ReadId(file, "tokenizer.ggml.eos_token_id", n, &v.eos_id));
  QUIRE_RETURN_IF_ERROR(ReadId(file, "tokenizer.ggml.padding_token_id", n, &v.pad_id));
  QUIRE_RETURN_IF_ERROR(ReadId(file, "tokenizer.ggml.unknown_token_id", n, &v.unk_id));
  QUIRE_ASSIGN_OR_RETURN(v.add_bos, file.OptionalBool("tokenizer.ggml.add_bos_token"));
  QUIRE_ASSIGN_OR_RETURN(v.add_eos, file.OptionalBool("tokenizer.ggml.add_eos_token"));
  QUIRE_ASSIGN_OR_RETURN(v.add_space_prefix, file.OptionalBool("tokenizer.ggml.add_space_prefix"));
  QUIRE_RETURN_IF_ERROR(CheckNoUnsupportedKeys(file));
  return v;
}

}  // namespace quire::text
