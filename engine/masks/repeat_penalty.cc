#include "engine/masks/repeat_penalty.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"

namespace quire::engine {

RepeatPenalty::RepeatPenalty(const DryParams& params, std::shared_ptr<const TokenTexts> texts,
                             std::span<const std::int32_t> prompt)
    : RepeatPenalty(std::make_shared<const Rules>(
                        Rules{params, text::StopAutomaton(params.breakers), std::move(texts)}),
                    prompt) {}

RepeatPenalty::RepeatPenalty(std::shared_ptr<const Rules> rules,
                             std::span<const std::int32_t> prompt)
    : rules_(std::move(rules)) {
  tokens_.reserve(prompt.size());
  previous_position_.reserve(prompt.size());
  match_lengths_.reserve(prompt.size());
  for (const std::int32_t token : prompt) {
    num_unbroken_ = Breaks(token, &node_) ? 0 : num_unbroken_ + 1;
    Link(token);
  }
  MatchPrompt();
}

bool RepeatPenalty::Breaks(std::int32_t token, std::int32_t* node) const {
  const absl::string_view text = rules_->texts->TextOf(token);
  bool breaks = text.empty();
  for (const char c : text) {
    *node = rules_->breakers.Next(*node, static_cast<std::uint8_t>(c));
    breaks = breaks || rules_->breakers.match(*node) >= 0;
  }
  return breaks;
}

std::size_t RepeatPenalty::WindowBegin(std::size_t size) const {
  const auto window = static_cast<std::size_t>(rules_->params.window_tokens);
  return window == 0 || size <= window ? 0 : size - window;
}

void RepeatPenalty::Link(std::int32_t token) {
  const auto place = static_cast<std::uint32_t>(tokens_.size());
  const auto [latest, is_new] = latest_position_.try_emplace(token, place);
  previous_position_.push_back(is_new ? kNone : std::exchange(latest->second, place));
  tokens_.push_back(token);
  match_lengths_.push_back(0);
}

// Comparing each position separately would take quadratic time in the length of a prompt. The Z
// algorithm (Gusfield, "Algorithms on Strings, Trees and Sequences", 1.3), applied to the reversed
// window, is linear.
void RepeatPenalty::MatchPrompt() {
  if (num_unbroken_ == 0) return;
  const std::size_t last = tokens_.size() - 1;
  const std::size_t window = tokens_.size() - WindowBegin(tokens_.size());
  const auto token = [&](std::size_t i) { return tokens_[last - i]; };
  const auto match = [&](std::size_t i) -> std::uint32_t& { return match_lengths_[last - i]; };
  std::size_t box = 0;  // the match [box, end) with the largest end
  std::size_t end = 0;
  for (std::size_t i = 1; i < window; ++i) {
    std::size_t length = i < end ? std::min<std::size_t>(end - i, match(i - box)) : 0;
    while (i + length < window && token(length) == token(i + length)) ++length;
    match(i) = static_cast<std::uint32_t>(length);
    if (i + length > end) {
      box = i;
      end = i + length;
    }
  }
  const auto max_length = static_cast<std::uint32_t>(num_unbroken_);
  for (std::uint32_t& length : match_lengths_) length = std::min(length, max_length);
}

void RepeatPenalty::Append(std::int32_t token) {
  const std::size_t place = tokens_.size();
  if (Breaks(token, &node_)) {
    num_unbroken_ = 0;
  } else {
    const std::size_t begin = WindowBegin(place + 1);
    const auto found = latest_position_.find(token);
    // Iterates backwards, so that match_lengths_[at - 1] is read before it is overwritten.
    for (std::uint32_t at = found == latest_position_.end() ? kNone : found->second;
         at != kNone && at >= begin; at = previous_position_[at]) {
      const bool continues = num_unbroken_ > 0 && at > 0 && tokens_[at - 1] == tokens_[place - 1];
      match_lengths_[at] = continues ? match_lengths_[at - 1] + 1 : 1;
    }
    ++num_unbroken_;
  }
  Link(token);
}

std::span<const kernels::LogitBias> RepeatPenalty::Penalties() {
  penalties_.clear();
  if (num_unbroken_ == 0) return penalties_;
  const DryParams& params = rules_->params;
  const auto allowed = static_cast<std::size_t>(params.allowed_length);
  const std::size_t begin = WindowBegin(tokens_.size());
  // Unlike clear(), erase() keeps the memory of a large table.
  longest_match_.erase(longest_match_.begin(), longest_match_.end());
  std::int32_t token = -1;
  std::size_t longest = 0;
  for (std::uint32_t at = previous_position_.back(); at != kNone && at >= begin;
       at = previous_position_[at]) {
    const std::size_t length = std::min<std::size_t>(match_lengths_[at], at - begin + 1);
    const std::int32_t next = tokens_[at + 1];
    if (length < allowed || (next == token && length <= longest)) continue;
    std::uint32_t& longest_for_next = longest_match_[next];
    longest_for_next = std::max(longest_for_next, static_cast<std::uint32_t>(length));
    token = next;
    longest = longest_for_next;
  }
  candidates_.clear();
  for (const auto& [next, length] : longest_match_) {
    std::int32_t node = node_;
    if (!Breaks(next, &node)) candidates_.emplace_back(length, next);
  }
  if (candidates_.size() > kMaxDryTokens) {
    const auto comes_first = [](const auto& a, const auto& b) {
      return a.first != b.first ? a.first > b.first : a.second < b.second;
    };
    std::ranges::nth_element(candidates_, candidates_.begin() + kMaxDryTokens, comes_first);
    candidates_.resize(kMaxDryTokens);
  }
  for (const auto& [length, next] : candidates_) {
    const double exponent = static_cast<double>(length - allowed);
    const double penalty = params.multiplier * std::pow(double{params.base}, exponent);
    penalties_.push_back({next, -static_cast<float>(std::min(penalty, double{kMaxPenalty}))});
  }
  std::ranges::sort(penalties_, {}, &kernels::LogitBias::token);
  return penalties_;
}

absl::Status RepeatPenalty::CheckIntegrity() const {
  const RepeatPenalty rebuilt(rules_, tokens_);
  if (rebuilt.previous_position_ != previous_position_ ||
      rebuilt.latest_position_ != latest_position_) {
    return absl::InternalError("the recorded positions of a token are wrong");
  }
  if (rebuilt.node_ != node_ || rebuilt.num_unbroken_ != num_unbroken_) {
    return absl::InternalError("the state of the breakers does not match the tokens");
  }
  if (num_unbroken_ == 0) return absl::OkStatus();
  const std::size_t begin = WindowBegin(tokens_.size());
  for (std::uint32_t at = previous_position_.back(); at != kNone && at >= begin;
       at = previous_position_[at]) {
    const std::size_t max_length = at - begin + 1;
    const std::size_t length = std::min<std::size_t>(match_lengths_[at], max_length);
    const std::size_t expected = std::min<std::size_t>(rebuilt.match_lengths_[at], max_length);
    if (length == expected) continue;
    return absl::InternalError(
        absl::StrCat("the match at ", at, " has ", length, " tokens, it must have ", expected));
  }
  return absl::OkStatus();
}

}  // namespace quire::engine
