#pragma once

// Converts text to token ids and back. The tokenizer is defined by tokenizer.json, tokenizer.model,
// tekken.json, tokenizer.tiktoken, or the metadata of a GGUF file.
//
// Place:      top of text/tokenizer. Encoding runs added tokens, normalizer, splitter, model and
//             post-processor. Decoding runs the decoder.
// Invariants: ids equal those of the package that the file belongs to (Hugging Face tokenizers
//             0.23.3, sentencepiece, mistral-common, tiktoken); docs/tokenizers.md lists the
//             differences. Load rejects unknown components.
// Threads:    immutable after Load; all methods may run on several threads at once. Encode takes
//             its working memory from a small pool, whose mutex it holds only briefly.
// Lifetime:   must outlive every Detokenizer that uses it.

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
  bool parse_special_tokens = true;  // false: text of special tokens is plain text
  // Whether a chat template rendered the text. For tokenizer.model and tekken.json, special tokens
  // are only recognized in such text, as in sentencepiece and mistral-common.
  bool from_template = false;
  // In these ranges, text of special tokens is plain text in any case. They must be sorted, must
  // not overlap, and must outlive the call.
  std::span<const ByteRange> literal = {};
};

struct TokenPiece {
  std::int32_t id = 0;
  std::string piece;  // same as TokenBytes(id)
  // Half-open range of whole characters in the input text; both are -1 for a token that the
  // post-processor added.
  std::int32_t start_byte = -1;
  std::int32_t end_byte = -1;
  bool special = false;
};

struct TokenizerOptions {
  // BPE results cached per concurrent caller; 0: no cache.
  std::int64_t piece_cache_entries = 65536;
};

class Tokenizer {
 public:
  // Reads the first file that exists of tokenizer.json, tekken.json, tokenizer.model and
  // tokenizer.tiktoken. Also reads flags and the names of the BOS, EOS and padding tokens from
  // tokenizer_config.json if present. Returns NOT_FOUND without a tokenizer file. Returns
  // UNIMPLEMENTED with the name of an unsupported kind or component, and INVALID_ARGUMENT with file
  // and field (`model.merges[3]`) for malformed files.
  static absl::StatusOr<std::unique_ptr<Tokenizer>> Load(const std::filesystem::path& model_dir,
                                                         const TokenizerOptions& options = {});

  // Like Load, but gets the contents of the files. An empty `tokenizer_config_json` means that the
  // file is missing.
  static absl::StatusOr<std::unique_ptr<Tokenizer>> FromJson(
      absl::string_view tokenizer_json, absl::string_view tokenizer_config_json,
      const TokenizerOptions& options = {});

  // Like FromJson, for the other kinds of file. For tiktoken, the configuration also has the
  // pattern and the special tokens.
  static absl::StatusOr<std::unique_ptr<Tokenizer>> FromSentencePiece(
      absl::string_view tokenizer_model, absl::string_view tokenizer_config_json,
      const TokenizerOptions& options = {});
  static absl::StatusOr<std::unique_ptr<Tokenizer>> FromTekken(
      absl::string_view tekken_json, absl::string_view tokenizer_config_json,
      const TokenizerOptions& options = {});
  static absl::StatusOr<std::unique_ptr<Tokenizer>> FromTiktoken(
      absl::string_view tokenizer_tiktoken, absl::string_view tokenizer_config_json,
      const TokenizerOptions& options = {});

  // Builds the tokenizer of a GGUF file (ReadGgufVocabulary). Returns the errors of
  // BuildGgufPipeline.
  static absl::StatusOr<std::unique_ptr<Tokenizer>> FromGguf(const GgufVocabulary& vocabulary,
                                                             const TokenizerOptions& options = {});

  // The functions above call this; TokenizerParts is defined only inside text/tokenizer.
  explicit Tokenizer(std::unique_ptr<TokenizerParts> parts);
  ~Tokenizer();
  Tokenizer(const Tokenizer&) = delete;
  Tokenizer& operator=(const Tokenizer&) = delete;

  // Returns INVALID_ARGUMENT if `text` is not UTF-8, with the byte offset, or has 2^31 bytes or
  // more.
  absl::StatusOr<std::vector<std::int32_t>> Encode(absl::string_view text,
                                                   const EncodeOptions& options) const;
  absl::StatusOr<std::vector<TokenPiece>> EncodeWithPieces(absl::string_view text,
                                                           const EncodeOptions& options) const;

  // Returns the text of all ids, with U+FFFD for malformed characters. It equals the joined output
  // of a Detokenizer. Returns INVALID_ARGUMENT for an id without text (see HasText).
  absl::StatusOr<std::string> Decode(std::span<const std::int32_t> ids,
                                     bool skip_special_tokens) const;
  // Like Decode, but keeps malformed characters, so the result may not be UTF-8.
  absl::StatusOr<std::string> DecodeBytes(std::span<const std::int32_t> ids,
                                          bool skip_special_tokens) const;

  // Returns the raw bytes of a token that is not at the start of a text; empty if !HasText(id).
  std::string TokenBytes(std::int32_t id) const;

  // Maximum number of text bytes that one token can represent. A text of n bytes then has at least
  // n / max_token_bytes() tokens. Returns nullopt if a stage drops or joins text, because a token
  // then has no maximum.
  std::optional<std::size_t> max_token_bytes() const;

  std::int32_t vocab_size() const;      // largest known id + 1
  bool HasText(std::int32_t id) const;  // false: out of range, or no token has the id
  bool IsSpecial(std::int32_t id) const;
  std::optional<std::int32_t> TokenToId(absl::string_view token) const;

  // The ids of the tokens that tokenizer_config.json or the GGUF file names. nullopt if the file
  // names no such token or an unknown token.
  std::optional<std::int32_t> bos_token_id() const;
  std::optional<std::int32_t> eos_token_id() const;
  std::optional<std::int32_t> pad_token_id() const;

  // The type and source of the model, such as "BPE (tokenizer.json)".
  const std::string& kind() const;

  // SHA-256, lower-case hex, of the contents of the tokenizer file and of its configuration file,
  // each preceded by its size as decimal text. For a GGUF file, the hash covers all metadata that
  // determine ids and text.
  const std::string& sha256() const;

  // The decoder chain, for Detokenizer.
  const Decoder& decoder() const;

 private:
  std::unique_ptr<TokenizerParts> parts_;
};

}  // namespace quire::text
