#pragma once

// The decoder of tokenizer.json: converts tokens to bytes.
//
// Place:      below Tokenizer and Detokenizer. Does not repair UTF-8.
// Invariants: the bytes of a token depend on the token alone, except for three rules about the
//             start of a text. Metaspace and SentencePiece omit the space of the first token. Strip
//             after Fuse removes characters at the start. Without a decoder, every token but the
//             first gets a space in front.
// Threads:    Decoder is immutable; a DecoderStream is used by one thread at a time.
// Lifetime:   a Decoder must outlive its streams.
// Source:     huggingface/tokenizers 0.23, `decoders`.

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "formats/json_value.h"
#include "text/tokenizer/decoder_state.h"
#include "text/unicode/regex.h"

namespace quire::text {

// The decoder's view of a token.
struct TokenText {
  // UTF-8; for a normalized added token, the normalized content; for OfBytes, any bytes.
  std::string text;
  bool known = false;  // false: no token has this id
  bool special = false;
};

class Decoder {
 public:
  // `config` is the value of "decoder" (null: no decoder). `tokens` is indexed by id.
  static absl::StatusOr<Decoder> FromJson(const formats::JsonValue& config,
                                          std::vector<TokenText> tokens);

  // Creates a decoder of tokens that already are bytes. `first_texts` has the bytes that each token
  // has at the start of a text. If `first_texts` is empty, these bytes are the same as elsewhere.
  // The start of a text is its first token. With `first_until_bytes`, the start extends to the
  // first token that produces bytes.
  static Decoder OfBytes(std::vector<TokenText> tokens, std::vector<std::string> first_texts,
                         bool first_until_bytes);

  std::int32_t size() const { return static_cast<std::int32_t>(tokens_.size()); }
  bool known(std::int32_t id) const { return id >= 0 && id < size() && tokens_[Index(id)].known; }
  bool special(std::int32_t id) const { return known(id) && tokens_[Index(id)].special; }
  // Returns the bytes of a token that is not at the start of a text. REQUIRES: known(id).
  const std::string& bytes(std::int32_t id) const { return bytes_[Index(id)]; }

 private:
  friend class DecoderStream;

  struct Stage {
    enum class Kind { kReplace, kByteFallback, kStrip, kByteLevel, kMetaspace };
    Kind kind;
    std::optional<Regex> pattern;  // kReplace
    std::string content;      // kReplace: replacement; kStrip: the character; kMetaspace: the sign
    std::uint32_t start = 0;  // kStrip: maximum number of characters at each end
    std::uint32_t stop = 0;
    // kMetaspace: the space signs (U+2581) of the first token are removed.
    bool strips_first = false;
  };

  absl::Status AddStage(const formats::JsonValue& config);
  absl::Status AddReplace(const formats::JsonValue& config);
  absl::Status AddStrip(const formats::JsonValue& config);
  absl::Status AddMetaspace(const formats::JsonValue& config);
  absl::StatusOr<std::string> Apply(std::string token, bool is_first, RegexScratch& scratch) const;

  static std::size_t Index(std::int32_t id) { return static_cast<std::size_t>(id); }

  std::vector<TokenText> tokens_;
  std::vector<std::string> bytes_;
  // Bytes of the first token of a text; empty: the same as bytes_.
  std::vector<std::string> first_bytes_;
  std::vector<Stage> stages_;
  bool has_bytes_ = false;  // while loading: an earlier stage converts text to bytes
  bool has_fuse_ = false;   // while loading: a Fuse, which joins tokens, has been read
  bool joins_with_space_ = false;
  bool first_until_bytes_ = false;
  std::string strip_character_;    // the character that Strip after Fuse removes
  std::uint32_t strip_count_ = 0;  // maximum number of removals
};

// Decodes a sequence of tokens one at a time.
class DecoderStream {
 public:
  // If skip_special_tokens is set, a special token is still shown if `shows_special` returns true
  // for its text. An empty function shows no special tokens.
  DecoderStream(const Decoder& decoder, bool skip_special_tokens,
                std::function<bool(absl::string_view)> shows_special = {});

  const DecoderState& state() const { return state_; }
  // Continues a text from `state`, which must come from a stream of the same decoder.
  void Resume(DecoderState state) { state_ = std::move(state); }

  // Appends the bytes of `id`, or nothing if the id has no text.
  void Push(std::int32_t id, std::string& out);
  // Appends text that was buffered because it might have to be stripped.
  void Finish(std::string& out);

 private:
  bool IsSkipped(std::int32_t id) const;
  void AppendStripped(absl::string_view bytes, std::string& out);

  const Decoder* decoder_;
  bool skip_special_tokens_;
  std::function<bool(absl::string_view)> shows_special_;
  DecoderState state_;
};

}  // namespace quire::text
