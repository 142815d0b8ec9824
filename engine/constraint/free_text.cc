#include "engine/constraint/free_text.h"

#include <algorithm>
#include <deque>
#include <map>
#include <utility>

#include "base/check.h"
#include "base/utf8.h"
#include "engine/constraint/code_points.h"

namespace quire::engine {
namespace {

using Expression = GrammarText::Expression;

struct State {
  std::map<char32_t, std::size_t> children;  // edges of the trie
  std::map<char32_t, std::size_t> moves;     // all transitions that do not lead to the start state
  std::vector<std::size_t> matches;          // indices of the strings that end in this state
  GrammarText::Rule rule = 0;
};

std::vector<State> MakeTrie(const std::vector<FreeTextEnd>& ends) {
  std::vector<State> states(1);
  for (std::size_t i = 0; i < ends.size(); ++i) {
    std::size_t at = 0;
    for (std::size_t byte = 0; byte < ends[i].text.size();) {
      const Utf8Char c = DecodeUtf8At(ends[i].text, byte);
      byte += c.size_bytes;
      const auto [child, is_new] = states[at].children.emplace(c.code_point, states.size());
      at = child->second;
      if (is_new) states.emplace_back();
    }
    states[at].matches.push_back(i);
  }
  return states;
}

// Aho-Corasick: a state inherits the transitions of its failure state, which is the longest proper
// suffix that is also a state. Its own trie edges override them.
void LinkStates(std::vector<State>& states) {
  std::deque<std::pair<std::size_t, std::size_t>> queue;  // a state and its failure state
  states[0].moves = states[0].children;
  for (const auto& [c, child] : states[0].children) queue.emplace_back(child, 0);
  for (; !queue.empty(); queue.pop_front()) {
    const auto [at, shorter] = queue.front();
    State& state = states[at];
    const State& other = states[shorter];
    state.matches.insert(state.matches.end(), other.matches.begin(), other.matches.end());
    state.moves = other.moves;
    for (const auto& [c, child] : state.children) {
      const auto below = other.moves.find(c);
      queue.emplace_back(child, below == other.moves.end() ? 0 : below->second);
      state.moves[c] = child;
    }
  }
}

}  // namespace

Expression WriteFreeText(const std::vector<FreeTextEnd>& ends,
                         const std::vector<Expression>& token_ends, bool may_end,
                         GrammarText::Rule start, GrammarText* grammar) {
  QUIRE_CHECK(!ends.empty());
  std::vector<State> states = MakeTrie(ends);
  LinkStates(states);
  states[0].rule = start;
  for (std::size_t i = 1; i < states.size(); ++i) {
    if (states[i].matches.empty()) states[i].rule = grammar->Reserve();
  }
  for (const State& state : states) {
    if (!state.matches.empty()) continue;
    std::vector<Expression> options = token_ends;
    if (may_end) options.push_back(GrammarText::Empty());
    std::map<GrammarText::Rule, std::vector<CodePoints::Range>> moves;
    std::vector<CodePoints::Range> move_chars;
    for (const auto& [c, target] : state.moves) {
      move_chars.emplace_back(c, c);
      const State& next = states[target];
      if (next.matches.empty()) moves[next.rule].emplace_back(c, c);
      const bool is_banned = std::ranges::any_of(
          next.matches, [&](std::size_t end) { return !ends[end].next.has_value(); });
      if (is_banned) continue;
      const Expression last = grammar->Character(CodePoints({{c, c}}), Spelling::kPlain);
      for (const std::size_t end : next.matches) {
        options.push_back(GrammarText::Sequence({last, *ends[end].next}));
      }
    }
    const CodePoints rest = CodePoints(std::move(move_chars)).Complement();
    options.push_back(GrammarText::Sequence(
        {grammar->Character(rest, Spelling::kPlain), GrammarText::Reference(start)}));
    for (const auto& [rule, set] : moves) {
      options.push_back(GrammarText::Sequence(
          {grammar->Character(CodePoints(set), Spelling::kPlain), GrammarText::Reference(rule)}));
    }
    grammar->Define(state.rule, GrammarText::Choice(options));
  }
  return GrammarText::Reference(start);
}

}  // namespace quire::engine
