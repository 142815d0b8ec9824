#pragma once

// The decoder of tokenizer.json: token strings to bytes.
//
// Place:      below Tokenizer and Detokenizer. Knows token strings, not UTF-8 repair.
// Invariants: the bytes of a token depend on the token alone, except for three rules about the
//             start of the text: Metaspace and SentencePiece (no sign in front), Strip behind Fuse
//             (characters at the start of the text) and no decoder at all (a space before every
//             token but the first).
// Threads:    Decoder is immutable; DecoderStream: one thread at a time.
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

// One token as the decoder needs it.
struct TokenText {
  std::string text;    // UTF-8; for a normalized added token its normalized content; OfBytes: bytes
  bool known = false;  // false: an id that no token has
  bool special = false;
};

class Decoder {
 public:
  // `config` is the value of "decoder" (null: no decoder), `tokens` is indexed by id.
  static absl::StatusOr<Decoder> FromJson(const formats::JsonValue& config,
                                          std::vector<TokenText> tokens);

  // Tokens that are bytes already. `first_texts`: of each token at the start of a text; empty: the
  // same. `first_until_bytes`: the start lasts until a token gave bytes, not just one token.
  static Decoder OfBytes(std::vector<TokenText> tokens, std::vector<std::string> first_texts,
                         bool first_until_bytes);

  std::int32_t size() const { return static_cast<std::int32_t>(tokens_.size()); }
  bool known(std::int32_t id) const { return id >= 0 && id < size() && tokens_[Index(id)].known; }
  bool special(std::int32_t id) const { return known(id) && tokens_[Index(id)].special; }
  // Bytes of a token in the middle of a text. REQUIRES: known(id).
  const std::string& bytes(std::int32_t id) const { return bytes_[Index(id)]; }

 private:
  friend class DecoderStream;

  struct Stage {
    enum class Kind { kReplace, kByteFallback, kStrip, kByteLevel, kMetaspace };
    Kind kind;
    std::optional<Regex> pattern;  // kReplace
    std::string content;           // kReplace: replacement; kStrip: the character; kMetaspace: sign
    std::uint32_t start = 0;       // kStrip: characters at each end
    std::uint32_t stop = 0;
    bool strips_first = false;  // kMetaspace: the first token loses its signs
  };

  absl::Status AddStage(const formats::JsonValue& config);
  absl::Status AddReplace(const formats::JsonValue& config);
  absl::Status AddStrip(const formats::JsonValue& config);
  absl::Status AddMetaspace(const formats::JsonValue& config);
  absl::StatusOr<std::string> Apply(std::string token, bool is_first, RegexScratch& scratch) const;

  static std::size_t Index(std::int32_t id) { return static_cast<std::size_t>(id); }

  std::vector<TokenText> tokens_;
  std::vector<std::string> bytes_;
  std::vector<std::string> first_bytes_;  // of the first token of a text; empty: the same
  std::vector<Stage> stages_;
  bool has_bytes_ =
      false;            // while loading: a stage has turned text into bytes, or has joined tokens
  bool fused_ = false;  // while loading: a Fuse was seen
  bool joins_with_space_ = false;
  bool first_until_bytes_ = false;
  std::string strip_;              // Strip behind Fuse: this character,
  std::uint32_t strip_count_ = 0;  // at most so often
};

// Bytes of a sequence of tokens, token by token.
class DecoderStream {
 public:
  // `shows_special`: of the special tokens that are skipped, those by whose text it is true come
  // all the same. Empty: none.
  DecoderStream(const Decoder& decoder, bool skip_special_tokens,
                std::function<bool(absl::string_view)> shows_special = {});

  const DecoderState& state() const { return state_; }
  // Continues the text that has led to `state`, which is of a stream of the same decoder.
  void Resume(DecoderState state) { state_ = std::move(state); }

  // Appends the bytes of `id`; nothing for an id without text.
  void Push(std::int32_t id, std::string& out);
  // Appends what was held back to see whether it must be stripped.
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
