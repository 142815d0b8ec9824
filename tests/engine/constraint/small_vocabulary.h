#pragma once

// A vocabulary that exercises the boundaries of grammars: all bytes, and random pieces of JSON,
// some of which start or end inside a character.

#include <cstdint>
#include <random>
#include <set>
#include <string>
#include <vector>

namespace quire::engine {

// The last token has no text and is the end token.
inline std::vector<std::string> SmallVocabulary(std::size_t size, std::uint32_t seed) {
  static const std::vector<std::string> kParts = {
      "\"", "\\", "a", "b",  ",", ":", "{", "}", "[", "]", "0",  "1",  "5", "9",
      "-",  ".",  " ", "\n", "e", "u", "t", "z", "é", "😀", "\r", "\t", "T", "@"};
  std::mt19937 random(seed);
  std::vector<std::string> tokens;
  tokens.reserve(size);
  for (int byte = 0; byte < 256; ++byte) tokens.emplace_back(1, static_cast<char>(byte));
  std::set<std::string> known(tokens.begin(), tokens.end());
  while (tokens.size() + 1 < size) {
    std::string token;
    for (auto count = 2 + random() % 4; count > 0; --count) {
      token += kParts[random() % kParts.size()];
    }
    if (random() % 4 == 0) token.erase(0, 1);
    if (random() % 4 == 0) token.pop_back();
    if (!token.empty() && known.insert(token).second) tokens.push_back(token);
  }
  tokens.emplace_back();
  return tokens;
}

}  // namespace quire::engine
