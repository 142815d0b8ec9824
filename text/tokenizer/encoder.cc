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

// Normalizer and splitter may each turn n bytes between two added tokens into kMaxGrowth * n +
// kFreeGrowthBytes at most; a character map may make 512 bytes of one. Unicode's longest
// compatibility form (U+FDFA) has 13 times the bytes of its character with SentencePiece's spaces.
constexpr std::size_t kMaxGrowth = 16;
constexpr std::size_t kFreeGrowthBytes = std::size_t{64} << 10;

// Scratch memory that grew beyond this for a long text goes back to the system after it.
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

  // What grows with the text; the cache of pieces does not.
  std::size_t capacity_bytes() const {
    return model.sentencepiece.capacity_bytes() + tokens.capacity() * sizeof(ModelToken);
  }
};

// Scratch memory that no call uses at the moment; as many as there were calls at once.
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
  bool tracked;  // the stages need spans, even if the caller does not
  Scratch& scratch;
  std::vector<EncodedToken> tokens;

  // Whether a special token that stands at these bytes of the input is one.
  bool TakesSpecial(InputSpan span) const {
    if (!parses_special) return false;
    const auto begin = static_cast<std::size_t>(span.begin);
    const auto end = static_cast<std::size_t>(span.end);
    const auto reaches = [begin](const ByteRange& range) { return range.end <= begin; };
    const auto range =
        std::partition_point(options.literal.begin(), options.literal.end(), reaches);
    return range == options.literal.end() || range->begin >= end;
  }

  void Add(std::int32_t id, InputSpan span) { tokens.push_back({id, with_spans ? span : kNoSpan}); }
};

Encoder::Encoder(EncoderParts parts, std::int64_t cache_entries)
    : parts_(std::move(parts)),
      cache_entries_(cache_entries),
      pool_(std::make_unique<ScratchPool>()) {}
Encoder::~Encoder() = default;
Encoder::Encoder(Encoder&&) noexcept = default;
Encoder& Encoder::operator=(Encoder&&) noexcept = default;

std::optional<std::int32_t> Encoder::TokenToId(absl::string_view token) const {
  const auto added = parts_.added.TokenToId(token);
  return added ? added : parts_.model.TokenToId(token);
}

bool Encoder::covers_every_byte() const {
  if (!parts_.normalizer.changes_nothing() || !parts_.splitter.maps_every_byte()) return false;
  for (const AddedToken& token : parts_.added.tokens()) {
    if (token.lstrip || token.rstrip) return false;
  }
  for (int byte = 0; byte < 256; ++byte) {
    const bool is_in_utf8 = byte != 0xC0 && byte != 0xC1 && byte < 0xF5;
    const absl::string_view text = ByteToUtf8(static_cast<std::uint8_t>(byte));
    if (is_in_utf8 && !parts_.model.TokenToId(text)) return false;
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
                              (options.from_template || !parts_.special_in_templates_only),
            .with_spans = with_spans,
            .tracked = with_spans || !options.literal.empty() || parts_.splitter.needs_tracking(),
            .scratch = *scratch,
            .tokens = {}};
  absl::Status status = absl::OkStatus();
  if (!options.add_special_tokens) {
    status = EncodeText(text, call);
  } else {
    for (const PostProcessor::Item& item : parts_.post_processor.items()) {
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
  std::vector<Cut> cuts;
  const auto takes_special = [&](std::size_t begin, std::size_t end) {
    return call.TakesSpecial({static_cast<std::int32_t>(begin), static_cast<std::int32_t>(end)});
  };
  QUIRE_RETURN_IF_ERROR(parts_.added.CutRaw(text, takes_special, call.scratch.regex, cuts));
  for (const Cut& cut : cuts) {
    const auto begin = static_cast<std::int32_t>(cut.begin);
    if (cut.id >= 0) {
      call.Add(cut.id, {begin, static_cast<std::int32_t>(cut.end)});
    } else {
      QUIRE_RETURN_IF_ERROR(
          EncodeSegment(text.substr(cut.begin, cut.end - cut.begin), begin, call));
    }
  }
  return absl::OkStatus();
}

// Text between two added tokens that match raw text; normalized by itself.
absl::Status Encoder::EncodeSegment(absl::string_view segment, std::int32_t offset,
                                    Call& call) const {
  AlignedText text(segment, offset, call.tracked);
  text.set_limit_bytes(RewriteLimit(segment.size()));
  QUIRE_RETURN_IF_ERROR(parts_.normalizer.Apply(text, call.scratch.regex));
  std::vector<Cut> cuts;
  const auto takes_special = [&](std::size_t begin, std::size_t end) {
    if (!text.tracked()) return call.parses_special;
    return call.TakesSpecial({text.span(begin).begin, text.span(end - 1).end});
  };
  QUIRE_RETURN_IF_ERROR(
      parts_.added.CutNormalized(text.text(), takes_special, call.scratch.regex, cuts));
  for (const Cut& cut : cuts) {
    if (cut.id >= 0) {
      const InputSpan span = text.tracked()
                                 ? InputSpan{text.span(cut.begin).begin, text.span(cut.end - 1).end}
                                 : kNoSpan;
      call.Add(cut.id, span);
    } else if (cut.begin == 0 && cut.end == text.text().size()) {
      return EncodeNormalized(std::move(text), call);
    } else {
      AlignedText part = text.EmptyLike();
      part.AppendFrom(text, cut.begin, cut.end);
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
  QUIRE_RETURN_IF_ERROR(parts_.splitter.Split(list, call.scratch.regex));
  for (const Piece& piece : list.pieces) {
    std::vector<ModelToken>& tokens = call.scratch.tokens;
    tokens.clear();
    parts_.model.Encode(list.text.view(piece.begin, piece.end), call.scratch.model, tokens);
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
