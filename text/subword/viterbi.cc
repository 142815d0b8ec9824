#include "text/subword/viterbi.h"

#include <algorithm>
#include <utility>

#include "base/utf8.h"

namespace quire::text {

Viterbi::Viterbi(PrefixTrie trie, std::vector<double> scores, Options options)
    : trie_(std::move(trie)), scores_(std::move(scores)), options_(options) {}

void Viterbi::Segment(absl::string_view text, ViterbiScratch& scratch,
                      std::vector<ModelToken>& out) const {
  auto& ends = scratch.ends_;
  ends.assign(text.size() + 1, {});
  const auto update_best = [&](std::size_t begin, std::size_t end, std::int32_t id, double sum) {
    ViterbiScratch::End& best = ends[end];
    if (best.begin >= 0 && sum <= best.score) return;
    best = {options_.single_precision ? static_cast<float>(sum) : sum,
            static_cast<std::int32_t>(begin), id};
  };
  for (std::size_t begin = 0; begin < text.size();) {
    const double sum = ends[begin].score;
    const std::size_t character = Utf8Length(text[begin]);
    bool has_own_token = false;
    trie_.ForEachPrefix(text.substr(begin), [&](std::size_t size, std::int32_t id) {
      update_best(begin, begin + size, id, sum + scores_[static_cast<std::size_t>(id)]);
      has_own_token = has_own_token || size == character;
    });
    if (!has_own_token) {
      const double unknown = sum + options_.unk_score;
      update_best(begin, begin + character, options_.unk_id,
                  options_.single_precision ? static_cast<float>(unknown) : unknown);
    }
    begin += character;
  }
  const std::size_t first = out.size();
  for (auto end = static_cast<std::int32_t>(text.size()); end > 0;) {
    const ViterbiScratch::End& best = ends[static_cast<std::size_t>(end)];
    out.push_back({best.id, static_cast<std::uint32_t>(end - best.begin)});
    end = best.begin;
  }
  std::reverse(out.begin() + static_cast<std::ptrdiff_t>(first), out.end());
}

}  // namespace quire::text
