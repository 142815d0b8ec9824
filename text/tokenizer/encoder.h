#pragma once

// Converts text to ids by running all stages of a tokenizer in order.
//
// Place:      below Tokenizer.
// Invariants: the ids do not depend on `with_spans`.
// Threads:    Encode may be called from any thread; a mutex guards the pool of scratch memory.

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "text/tokenizer/added_tokens.h"
#include "text/tokenizer/normalizer.h"
#include "text/tokenizer/post_processor.h"
#include "text/tokenizer/splitter.h"
#include "text/tokenizer/token_model.h"
#include "text/tokenizer/tokenizer.h"
#include "text/unicode/aligned_text.h"

namespace quire::text {

struct EncoderParts {
  AddedTokens added;
  Normalizer normalizer;
  Splitter splitter;
  TokenModel model;
  PostProcessor post_processor;
  // If true, special tokens are recognized only in text that a chat template rendered.
  bool special_in_templates_only = false;
};

// `span` is the position of the token in the input. It is {-1, -1} for tokens that the
// post-processor adds, and for all tokens without `with_spans`.
struct EncodedToken {
  std::int32_t id;
  InputSpan span;
};

class Encoder {
 public:
  Encoder(EncoderParts parts, std::int64_t cache_entries);
  ~Encoder();
  Encoder(Encoder&&) noexcept;
  Encoder& operator=(Encoder&&) noexcept;

  absl::StatusOr<std::vector<EncodedToken>> Encode(absl::string_view text,
                                                   const EncodeOptions& options,
                                                   bool with_spans) const;

  std::optional<std::int32_t> TokenToId(absl::string_view token) const;

  // Returns whether the tokens partition the bytes of every text. This is true if no stage rewrites
  // or drops text, no added token consumes spaces, and every byte has a token.
  bool covers_every_byte() const;

 private:
  struct Scratch;
  struct ScratchPool;
  struct Call;  // state of one Encode call

  absl::Status EncodeText(absl::string_view text, Call& call) const;
  absl::Status EncodeSegment(absl::string_view raw, std::int32_t offset, Call& call) const;
  absl::Status EncodeNormalized(AlignedText text, Call& call) const;

  // Pooled scratch memory is bound to the address of the model, which a move must not change.
  std::unique_ptr<const EncoderParts> parts_;
  std::int64_t cache_entries_;
  std::unique_ptr<ScratchPool> pool_;
};

}  // namespace quire::text
