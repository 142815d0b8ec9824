#include "text/tokenizer/encoder.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "base/utf8.h"
#include "text/unicode/unicode.h"

namespace quire::text {
namespace {

constexpr InputSpan kNoSpan{-1, -1};

// Normalizer and splitter may each expand n bytes between two added tokens to at most kMaxGrowth *
// n + kFreeGrowthBytes. Without a limit a character map may expand one byte to 512. Unicode's
// longest compatibility form (U+FDFA), with SentencePiece's spaces, has 13 times the bytes of its
// character.
constexpr std::size_t kMaxGrowth = 16;
constexpr std::size_t kFreeGrowthBytes = std::size_t{64} << 10;

// Scratch memory that exceeds this size after a long text is freed.
constexpr std::size_t kMaxKeptBytes = std::size_t{4} << 20;

std::size_t RewriteLimit(std::size_t text_bytes) {
  return std::min(kMaxGrowth * text_bytes + kFreeGrowthBytes, AlignedText::kMaxBytes);
}

}  // namespace

struct Encoder::Scratch {
  explicit Scratch(std::int64_t cache_entries) : model(cache_entries) {}
  RegexScratch regex;
  ModelScratch model;
  std::vector<ModelToken> tokens;

  // Returns the memory that grows with the text, without the cache of pieces.
  std::size_t capacity_bytes() const {
    return model.capacity_bytes() + tokens.capacity() * sizeof(ModelToken);
  }
};

// Scratch memory that is not in use. It grows to the maximum number of concurrent calls.
struct Encoder::ScratchPool {
  std::unique_ptr<Scratch> Take(std::int64_t cache_entries) {
    {
      const std::lock_guard lock(mutex);
      if (!free.empty()) {
        std::unique_ptr<Scratch> scratch = std::move(free.back());
        free.pop_back();
        return scratch;
      }
    }
    return std::make_unique<Scratch>(cache_entries);
  }
  void Return(std::unique_ptr<Scratch> scratch) {
    if (scratch->capacity_bytes() > kMaxKeptBytes) return;
    const std::lock_guard lock(mutex);
    free.push_back(std::move(scratch));
  }

  std::mutex mutex;
  std::vector<std::unique_ptr<Scratch>> free;  // guarded by mutex
};

struct Encoder::Call {
  const EncodeOptions& options;
  bool parses_special;
  bool with_spans;
  bool tracked;  // the caller or a stage needs spans
  Scratch& scratch;
  std::vector<EncodedToken> tokens;

  // Returns whether text of a special token at these input bytes becomes that token.
  bool TakesSpecial(InputSpan span) const {
    if (!parses_special) return false;
    const auto begin = static_cast<std::size_t>(span.begin);
    const auto end = static_cast<std::size_t>(span.end);
    const auto ends_before = [begin](const ByteRange& range) { return range.end <= begin; };
    const auto range =
        std::partition_point(options.literal.begin(), options.literal.end(), ends_before);
    return range == options.literal.end() || range->begin >= end;
  }

  void Add(std::int32_t id, InputSpan span) { tokens.push_back({id, with_spans ? span : kNoSpan}); }
};

Encoder::Encoder(EncoderParts parts, std::int64_t cache_entries)
    : parts_(std::make_unique<const EncoderParts>(std::move(parts))),
      cache_entries_(cache_entries),
      pool_(std::make_unique<ScratchPool>()) {}
Encoder::~Encoder() = default;
Encoder::Encoder(Encoder&&) noexcept = default;
Encoder& Encoder::operator=(Encoder&&) noexcept = default;

std::optional<std::int32_t> Encoder::TokenToId(absl::string_view token) const {
  const auto added = parts_->added.TokenToId(token);
  return added ? added : parts_->model.TokenToId(token);
}

bool Encoder::covers_every_byte() const {
  if (!parts_->normalizer.changes_nothing() || !parts_->splitter.maps_every_byte()) return false;
  for (const AddedToken& token : parts_->added.tokens()) {
    if (token.lstrip || token.rstrip) return false;
  }
  for (int byte = 0; byte < 256; ++byte) {
    const bool is_in_utf8 = byte != 0xC0 && byte != 0xC1 && byte < 0xF5;
    const absl::string_view text = ByteToUtf8(static_cast<std::uint8_t>(byte));
    if (is_in_utf8 && !parts_->model.TokenToId(text)) return false;
  }
  return true;
}

absl::StatusOr<std::vector<EncodedToken>> Encoder::Encode(absl::string_view text,
                                                          const EncodeOptions& options,
                                                          bool with_spans) const {
  constexpr std::size_t kMaxTextBytes = std::numeric_limits<std::int32_t>::max();
  if (text.size() > kMaxTextBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("text has ", text.size(), " bytes, the limit is ", kMaxTextBytes));
  }
  if (const auto offset = FirstInvalidUtf8(text)) {
    return absl::InvalidArgumentError(absl::StrCat("text is not valid UTF-8 at byte ", *offset));
  }
  std::unique_ptr<Scratch> scratch = pool_->Take(cache_entries_);
  Call call{.options = options,
            .parses_special = options.parse_special_tokens &&
                              (options.from_template || !parts_->special_in_templates_only),
            .with_spans = with_spans,
            .tracked = with_spans || !options.literal.empty() || parts_->splitter.needs_tracking(),
            .scratch = *scratch,
            .tokens = {}};
  absl::Status status = absl::OkStatus();
  if (!options.add_special_tokens) {
    status = EncodeText(text, call);
  } else {
    for (const PostProcessor::Item& item : parts_->post_processor.items()) {
      if (item.is_text) status = EncodeText(text, call);
      if (!status.ok()) break;
      for (const std::int32_t id : item.ids) call.Add(id, kNoSpan);
    }
  }
  pool_->Return(std::move(scratch));
  QUIRE_RETURN_IF_ERROR(status);
  return std::move(call.tokens);
}

absl::Status Encoder::EncodeText(absl::string_view text, Call& call) const {
  std::vector<TextSegment> segments;
  const auto takes_special = [&](std::size_t begin, std::size_t end) {
    return call.TakesSpecial({static_cast<std::int32_t>(begin), static_cast<std::int32_t>(end)});
  };
  QUIRE_RETURN_IF_ERROR(parts_->added.CutRaw(text, takes_special, call.scratch.regex, segments));
  for (const TextSegment& segment : segments) {
    const auto begin = static_cast<std::int32_t>(segment.begin);
    if (segment.id >= 0) {
      call.Add(segment.id, {begin, static_cast<std::int32_t>(segment.end)});
    } else {
      QUIRE_RETURN_IF_ERROR(
          EncodeSegment(text.substr(segment.begin, segment.end - segment.begin), begin, call));
    }
  }
  return absl::OkStatus();
}

// Encodes a text between two added tokens that CutRaw found. Each such text is normalized on its
// own.
absl::Status Encoder::EncodeSegment(absl::string_view raw, std::int32_t offset, Call& call) const {
  AlignedText text(raw, offset, call.tracked);
  text.set_limit_bytes(RewriteLimit(raw.size()));
  QUIRE_RETURN_IF_ERROR(parts_->normalizer.Apply(text, call.scratch.regex));
  std::vector<TextSegment> segments;
  const auto takes_special = [&](std::size_t begin, std::size_t end) {
    if (!text.tracked()) return call.parses_special;
    return call.TakesSpecial({text.span(begin).begin, text.span(end - 1).end});
  };
  QUIRE_RETURN_IF_ERROR(
      parts_->added.CutNormalized(text.text(), takes_special, call.scratch.regex, segments));
  for (const TextSegment& segment : segments) {
    if (segment.id >= 0) {
      const InputSpan span =
          text.tracked() ? InputSpan{text.span(segment.begin).begin, text.span(segment.end - 1).end}
                         : kNoSpan;
      call.Add(segment.id, span);
    } else if (segment.begin == 0 && segment.end == text.text().size()) {
      return EncodeNormalized(std::move(text), call);
    } else {
      AlignedText part = text.EmptyLike();
      part.AppendFrom(text, segment.begin, segment.end);
      QUIRE_RETURN_IF_ERROR(EncodeNormalized(std::move(part), call));
    }
  }
  return absl::OkStatus();
}

absl::Status Encoder::EncodeNormalized(AlignedText text, Call& call) const {
  PieceList list;
  const std::size_t size = text.text().size();
  text.set_limit_bytes(RewriteLimit(size));
  list.pieces.push_back({0, size, text.tracked() ? text.span(0).begin : -1});
  list.text = std::move(text);
  QUIRE_RETURN_IF_ERROR(parts_->splitter.Split(list, call.scratch.regex));
  for (const Piece& piece : list.pieces) {
    std::vector<ModelToken>& tokens = call.scratch.tokens;
    tokens.clear();
    parts_->model.Encode(list.text.view(piece.begin, piece.end), call.scratch.model, tokens);
    std::size_t begin = piece.begin;
    for (const ModelToken& token : tokens) {
      const std::size_t end = std::min(begin + token.size_bytes, piece.end);
      InputSpan span = kNoSpan;
      if (list.text.tracked() && begin < end) {
        span = {list.text.span(begin).begin, list.text.span(end - 1).end};
      }
      call.Add(token.id, span);
      begin = end;
    }
  }
  return absl::OkStatus();
}

}  // namespace quire::text
