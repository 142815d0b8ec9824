#pragma once

// Text to token ids and back, as the model's own tokenizer.json, tokenizer.model, tekken.json or
// tokenizer.tiktoken, or the metadata of its GGUF file say.
//
// Place:      top of text/tokenizer; strings together the stages of one tokenizer: added tokens,
//             normalizer, splitter, model, post-processor; and the decoder on the way back.
// Invariants: ids equal those of the package that the file was made for (Hugging Face tokenizers
//             0.23.3, sentencepiece, mistral-common, tiktoken); what differs is in
//             docs/tokenizers.md. An unknown component is an error of Load, never ignored.
// Threads:    immutable after Load; every method may be called from any thread at once. Working
//             memory of Encode comes from a small pool behind a mutex that is held for two pointer
//             moves.
// Lifetime:   must outlive every Detokenizer made from it.

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace quire::text {

class Decoder;
struct GgufVocabulary;
struct TokenizerParts;

// Bytes [begin, end) of a text.
struct ByteRange {
  std::size_t begin = 0;
  std::size_t end = 0;
};

struct EncodeOptions {
  bool add_special_tokens = true;    // run the post-processor's template (BOS, EOS)
  bool parse_special_tokens = true;  // false: the text of a special token is plain text
  // The text was rendered by a chat template. tokenizer.model and tekken.json have special tokens
  // in such text only; for the packages they come from, theirs are plain text in any text.
  bool from_template = false;
  // Here it is plain text anyway. In order, without overlaps; must outlive the call.
  std::span<const ByteRange> literal = {};
};

struct TokenPiece {
  std::int32_t id = 0;
  std::string piece;  // raw bytes, as TokenBytes(id)
  std::int32_t start_byte =
      -1;                      // half-open range of whole characters in the input text; both -1 for
  std::int32_t end_byte = -1;  // a token that the post-processor added
  bool special = false;
};

struct TokenizerOptions {
  std::int64_t piece_cache_entries = 65536;  // BPE results kept per concurrent caller; 0: no cache
};

class Tokenizer {
 public:
  // Reads the first there is of tokenizer.json, tekken.json, tokenizer.model and
  // tokenizer.tiktoken, and, if present, tokenizer_config.json (names of BOS, EOS and padding
  // tokens; flags). Errors: NOT_FOUND without any tokenizer file; UNIMPLEMENTED, by name, for kinds
  // and components that are not supported; INVALID_ARGUMENT with file and field
  // (`model.merges[3]`) for malformed files.
  static absl::StatusOr<std::unique_ptr<Tokenizer>> Load(const std::filesystem::path& model_dir,
                                                         const TokenizerOptions& options = {});

  // The same from the files' contents. An empty `tokenizer_config_json` stands for a missing file.
  static absl::StatusOr<std::unique_ptr<Tokenizer>> FromJson(
      absl::string_view tokenizer_json, absl::string_view tokenizer_config_json,
      const TokenizerOptions& options = {});

  // The same for the other kinds of file. tiktoken's configuration has its pattern and its special
  // tokens.
  static absl::StatusOr<std::unique_ptr<Tokenizer>> FromSentencePiece(
      absl::string_view tokenizer_model, absl::string_view tokenizer_config_json,
      const TokenizerOptions& options = {});
  static absl::StatusOr<std::unique_ptr<Tokenizer>> FromTekken(
      absl::string_view tekken_json, absl::string_view tokenizer_config_json,
      const TokenizerOptions& options = {});
  static absl::StatusOr<std::unique_ptr<Tokenizer>> FromTiktoken(
      absl::string_view tokenizer_tiktoken, absl::string_view tokenizer_config_json,
      const TokenizerOptions& options = {});

  // The tokenizer of a GGUF file (ReadGgufVocabulary). Errors: as BuildGgufPipeline.
  static absl::StatusOr<std::unique_ptr<Tokenizer>> FromGguf(const GgufVocabulary& vocabulary,
                                                             const TokenizerOptions& options = {});

  ~Tokenizer();
  Tokenizer(const Tokenizer&) = delete;
  Tokenizer& operator=(const Tokenizer&) = delete;

  // Errors: INVALID_ARGUMENT with the byte offset if `text` is not UTF-8, or if it has 2^31 bytes.
  absl::StatusOr<std::vector<std::int32_t>> Encode(absl::string_view text,
                                                   const EncodeOptions& options) const;
  absl::StatusOr<std::vector<TokenPiece>> EncodeWithPieces(absl::string_view text,
                                                           const EncodeOptions& options) const;

  // The text of all ids; a broken character prints U+FFFD. Equals what a Detokenizer emits in
  // total. Errors: INVALID_ARGUMENT for an id that has no text (see HasText).
  absl::StatusOr<std::string> Decode(std::span<const std::int32_t> ids,
                                     bool skip_special_tokens) const;
  // The same before broken characters are replaced; not always UTF-8.
  absl::StatusOr<std::string> DecodeBytes(std::span<const std::int32_t> ids,
                                          bool skip_special_tokens) const;

  // Raw bytes of one token as it decodes in the middle of a text; empty if !HasText(id).
  std::string TokenBytes(std::int32_t id) const;

  // Most bytes of a text that one token can stand for, so that a text of n bytes has at least
  // n / max_token_bytes() tokens; absent where it may be any number, because a stage drops or joins
  // some of the text.
  std::optional<std::size_t> max_token_bytes() const;

  std::int32_t vocab_size() const;      // greatest known id + 1
  bool HasText(std::int32_t id) const;  // false: out of range, or an id that no token has
  bool IsSpecial(std::int32_t id) const;
  std::optional<std::int32_t> TokenToId(absl::string_view token) const;

  // As named by tokenizer_config.json or the GGUF file; absent where it names none or the tokenizer
  // does not know it.
  std::optional<std::int32_t> bos_token_id() const;
  std::optional<std::int32_t> eos_token_id() const;
  std::optional<std::int32_t> pad_token_id() const;

  // The type of the model and where it comes from, such as "BPE (tokenizer.json)".
  const std::string& kind() const;

  // SHA-256, lower-case hex, over both files' contents (each preceded by its length as decimal
  // text); for a GGUF file over whatever in its metadata decides ids and text.
  const std::string& sha256() const;

  // The decoder chain, for Detokenizer.
  const Decoder& decoder() const;

 private:
  explicit Tokenizer(std::unique_ptr<TokenizerParts> parts);

  std::unique_ptr<TokenizerParts> parts_;
};

}  // namespace quire::text
