#include "text/chat/chat_marker.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_format.h"
#include "base/utf8.h"
#include "text/chat/chat_template.h"

namespace quire::text {
namespace {

constexpr char32_t kFirstMark = 0xFDD0;
constexpr char32_t kLastMark = 0xFDEF;

// Returns whether the conversation contains `mark`, whose code point is `code`.
bool Has(const ChatInput& chat, absl::string_view mark, char32_t code) {
  const auto has = [mark](absl::string_view text) {
    return text.find(mark) != absl::string_view::npos;
  };
  // JSON can also write the character as an escape.
  const std::string escape = absl::StrFormat("\\u%04x", static_cast<std::uint32_t>(code));
  const auto same = [](char a, char b) {
    return absl::ascii_tolower(static_cast<unsigned char>(a)) ==
           absl::ascii_tolower(static_cast<unsigned char>(b));
  };
  const auto has_json = [&](absl::string_view json) {
    return has(json) ||
           std::search(json.begin(), json.end(), escape.begin(), escape.end(), same) != json.end();
  };
  for (const ChatMessage& message : chat.messages) {
    if (has(message.role) || has(message.content) || has(message.name) ||
        has(message.tool_call_id) || has(message.reasoning_content)) {
      return true;
    }
    if (std::any_of(message.parts.begin(), message.parts.end(), has)) return true;
    for (const ChatToolCall& call : message.tool_calls) {
      if (has(call.id) || has(call.name) || has_json(call.arguments_json)) return true;
    }
  }
  for (const ChatTool& tool : chat.tools) {
    if (has(tool.name) || has(tool.description) || has_json(tool.parameters_json) ||
        has_json(tool.json)) {
      return true;
    }
  }
  return has_json(chat.template_vars_json);
}

}  // namespace

absl::StatusOr<ChatMarker> ChatMarker::Create(const ChatInput& chat, const PrefixTrie* special,
                                              std::size_t longest_special) {
  ChatMarker marker;
  if (special == nullptr) return marker;
  marker.special_ = special;
  marker.longest_special_ = longest_special;
  for (char32_t c = kFirstMark; c <= kLastMark && marker.end_.empty(); ++c) {
    std::string mark;
    AppendUtf8(c, mark);
    if (Has(chat, mark, c)) continue;
    (marker.begin_.empty() ? marker.begin_ : marker.end_) = std::move(mark);
  }
  if (marker.end_.empty()) {
    return absl::InvalidArgumentError(
        "the conversation contains at least 31 of the 32 noncharacters U+FDD0 to U+FDEF; remove "
        "at least two of them");
  }
  return marker;
}

std::string ChatMarker::Mark(std::string text) const {
  if (special_ == nullptr) return text;
  std::string out;
  std::size_t done = 0;
  while (const std::optional<PrefixTrie::Match> match = special_->Find(text, done)) {
    out.append(text, done, match->begin - done);
    out += begin_;
    out.append(text, match->begin, match->end - match->begin);
    out += end_;
    done = match->end;
  }
  if (done == 0) return text;
  out.append(text, done);
  return out;
}

RenderedChat ChatMarker::Unmark(absl::string_view text) const {
  RenderedChat chat;
  if (special_ == nullptr) {
    chat.text = std::string(text);
    return chat;
  }
  constexpr std::size_t kNone = absl::string_view::npos;
  bool is_open = false;
  std::size_t open = 0;  // position of the last opening marker without a closing one
  const auto add = [&chat](std::size_t begin, std::size_t end) {
    if (!chat.literal.empty()) begin = std::max(begin, chat.literal.back().end);
    if (begin < end) chat.literal.push_back({begin, end});
  };
  std::size_t begin = text.find(begin_);
  std::size_t end = text.find(end_);
  for (std::size_t at = 0; at < text.size();) {
    if (begin < at) begin = text.find(begin_, at);
    if (end < at) end = text.find(end_, at);
    const std::size_t mark = std::min(begin, end);
    const absl::string_view plain = text.substr(at, mark == kNone ? kNone : mark - at);
    chat.text.append(plain.data(), plain.size());
    if (mark == kNone) break;
    const std::size_t here = chat.text.size();
    if (is_open) {
      add(open, std::min(here, open + longest_special_));
    } else if (mark == end) {
      add(here - std::min(here, longest_special_), here);
    }
    is_open = mark == begin;
    open = here;
    at = mark + begin_.size();
  }
  if (is_open) add(open, std::min(chat.text.size(), open + longest_special_));
  return chat;
}

}  // namespace quire::text
