#pragma once

// The way from text to ids: all stages of one tokenizer in their order.
//
// Place:      below Tokenizer.
// Invariants: with or without spans the ids are the same.
// Threads:    Encode may be called from any thread; scratch memory is lent out under a mutex.
// Lifetime:   none.

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
  // Text has special tokens only where a chat template printed them.
  bool special_in_templates_only = false;
};

// `span` is where the token stands in the input; -1 to -1 for tokens of the post-processor and when
// spans were not asked for.
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

  // Whether each byte of a text is in some token, which stands for no byte but its own: no stage
  // rewrites or drops text, no added token swallows spaces, and every byte has a token.
  bool covers_every_byte() const;

 private:
  struct Scratch;
  struct ScratchPool;
  struct Call;  // one run of Encode

  absl::Status EncodeText(absl::string_view text, Call& call) const;
  absl::Status EncodeSegment(absl::string_view segment, std::int32_t offset, Call& call) const;
  absl::Status EncodeNormalized(AlignedText text, Call& call) const;

  EncoderParts parts_;
  std::int64_t cache_entries_;
  std::unique_ptr<ScratchPool> pool_;
};

}  // namespace quire::text
