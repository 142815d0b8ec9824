// Tests of the start of output text: after a prompt, and verbatim as for masks.

#include "text/detokenizer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "tests/text/testdata.h"

namespace quire::text {
namespace {

using Ids = std::vector<std::int32_t>;

std::unique_ptr<Tokenizer> LoadTokenizer(const std::string& name) {
  auto loaded = Tokenizer::Load(TokenizerData() / "cases" / name);
  EXPECT_TRUE(loaded.ok()) << loaded.status();
  return *std::move(loaded);
}

Ids IdsOf(const Tokenizer& tokenizer, const std::vector<std::string>& tokens) {
  Ids ids;
  for (const std::string& token : tokens) {
    const auto id = tokenizer.TokenToId(token);
    EXPECT_TRUE(id.has_value()) << token;
    ids.push_back(id.value_or(0));
  }
  return ids;
}

std::string TextFrom(const Tokenizer& tokenizer, bool skip, DetokenizerState state,
                     const Ids& answer) {
  Detokenizer detokenizer(tokenizer, skip);
  detokenizer.Begin(std::move(state));
  std::string text;
  for (const std::int32_t id : answer) text += detokenizer.Push(id);
  return text + detokenizer.Finish();
}

std::string TextBehind(const Tokenizer& tokenizer, bool skip, const Ids& prompt,
                       const Ids& answer) {
  return TextFrom(tokenizer, skip, Detokenizer::StateAfter(tokenizer, skip, prompt), answer);
}

// Expected texts are decode(prompt + output) without decode(prompt) in Hugging Face tokenizers
// 0.23.3.
TEST(DetokenizerTest, OutputContinuesItsPrompt) {
  struct Case {
    const char* tokenizer;
    bool skip;
    std::vector<std::string> prompt, answer;
    const char* text;
  };
  const Case cases[] = {
      {"llama2-style", true, {"<s>", "▁a"}, {"▁the", "▁a"}, " the a"},
      {"llama2-style", true, {"<s>"}, {"▁the", "▁a"}, "the a"},
      {"llama2-style", false, {"<s>"}, {"▁the", "▁a"}, " the a"},
      {"llama2-style", true, {"▁"}, {"▁the", "▁a"}, " the a"},
      {"llama2-style", true, {}, {"▁", "▁a"}, " a"},
      {"mistral-style", true, {"<s>", "▁a"}, {"▁the", "▁a"}, " the a"},
      {"mistral-style", true, {"<s>"}, {"▁the", "▁a"}, "the a"},
      {"mistral-style", false, {"<s>"}, {"▁the", "▁a"}, " the a"},
      {"mistral-style", true, {"▁"}, {"▁the", "▁a"}, " the a"},
      {"mistral-style", true, {}, {"▁", "▁a"}, " a"},
      {"unigram-byte-fallback", true, {"<s>", "▁a"}, {"▁the", "▁a"}, " the a"},
      {"unigram-byte-fallback", true, {"<s>"}, {"▁the", "▁a"}, "the a"},
      {"unigram-byte-fallback", false, {"<s>"}, {"▁the", "▁a"}, " the a"},
      {"unigram-byte-fallback", true, {"▁"}, {"▁the", "▁a"}, " the a"},
      {"unigram-byte-fallback", true, {}, {"▁", "▁a"}, " a"},
      {"mistral-style", true, {"<s>", "[INST]", "▁a", "[/INST]"}, {"▁the"}, " the"},
      {"mistral-style", true, {"<s>", "[INST]", "[/INST]"}, {"▁the"}, "the"},
      {"mistral-style", false, {"[INST]", "[/INST]"}, {"▁the"}, " the"},
      {"gemma-style", true, {"<bos>"}, {"▁the"}, " the"},
      {"unigram-nmt-nfkc", true, {"<s>"}, {"▁the", "▁the"}, "the the"},
      {"unigram-nmt-nfkc", false, {"<s>"}, {"▁the"}, " the"},
      {"unigram-nmt-nfkc", true, {"<s>", "▁the"}, {"▁the"}, " the"},
      {"metaspace-first-split", true, {"<s>"}, {"▁the", "▁the"}, "the the"},
      {"metaspace-first-split", false, {"<s>"}, {"▁the"}, " the"},
      {"metaspace-first-split", true, {"<s>", "▁the"}, {"▁the"}, " the"},
      {"metaspace-never-whole", true, {"<s>"}, {"▁the", "▁the"}, " the the"},
      {"metaspace-never-whole", false, {"<s>"}, {"▁the"}, " the"},
      {"metaspace-never-whole", true, {"<s>", "▁the"}, {"▁the"}, " the"},
      {"decoder-strip-three", true, {"<s>"}, {"▁▁", "▁▁", "▁st"}, "  st"},
      {"decoder-strip-three", true, {"▁▁"}, {"▁▁", "▁st"}, "  st"},
      {"decoder-strip-three", true, {"▁▁", "▁c"}, {"▁▁", "▁st"}, "   st"},
      {"decoder-none", true, {"<s>"}, {"es", "re"}, "es re"},
      {"decoder-none", false, {"<s>"}, {"es", "re"}, " es re"},
      {"decoder-none", true, {"da"}, {"es", "re"}, " es re"},
      {"llama3-style", true, {"ul"}, {"ĠÐ¿", "ous"}, " пous"},
  };
  for (const Case& c : cases) {
    const auto tokenizer = LoadTokenizer(c.tokenizer);
    EXPECT_EQ(
        TextBehind(*tokenizer, c.skip, IdsOf(*tokenizer, c.prompt), IdsOf(*tokenizer, c.answer)),
        c.text)
        << c.tokenizer << (c.skip ? ", skipping" : "") << ", prompt of " << c.prompt.size();
  }
}

// Expected texts come from sentencepiece 0.2.3 in the same way.
TEST(DetokenizerTest, OutputContinuesItsPromptInSentencePiece) {
  struct Case {
    const char* tokenizer;
    Ids prompt, answer;
    const char* text;
  };
  const Case cases[] = {
      {"llama2-sentencepiece", {1, 261}, {266, 261}, " the a"},
      {"llama2-sentencepiece", {1}, {266, 261}, "the a"},
      {"llama2-sentencepiece", {697}, {266}, " the"},
      {"unigram-byte-fallback-sentencepiece", {1, 269}, {263, 269}, " the a"},
      {"unigram-byte-fallback-sentencepiece", {1, 259, 259}, {263}, "the"},
      {"unigram-nmt-nfkc-sentencepiece", {1, 14}, {7, 14}, " the a"},
      {"unigram-nmt-nfkc-sentencepiece", {3}, {7}, "the"},
  };
  for (const Case& c : cases) {
    const auto tokenizer = LoadTokenizer(c.tokenizer);
    EXPECT_EQ(TextBehind(*tokenizer, true, c.prompt, c.answer), c.text) << c.tokenizer;
  }
}

// The prompt ends with E2 82, two bytes of the euro sign.
TEST(DetokenizerTest, CharacterSplitByThePromptIsEmittedWholeOrNotAtAll) {
  struct Case {
    std::vector<std::string> answer;
    const char* text;
    const char* text_with_cut;  // if the echoed prompt leaves the U+FFFD to the output
  };
  const Case cases[] = {
      {{"<0xAC>", "▁the"}, "\xE2\x82\xAC the", "\xE2\x82\xAC the"},
      {{"▁the"}, " the", "\xEF\xBF\xBD the"},
      {{"<0xE2>", "<0x82>", "<0xAC>"}, "\xE2\x82\xAC", "\xEF\xBF\xBD\xE2\x82\xAC"},
      {{}, "", "\xEF\xBF\xBD"}};
  const auto tokenizer = LoadTokenizer("llama2-style");
  const Ids prompt = IdsOf(*tokenizer, {"<s>", "▁a", "<0xE2>", "<0x82>"});
  DetokenizerState state = Detokenizer::StateAfter(*tokenizer, true, prompt);
  EXPECT_TRUE(state.is_cut());
  for (const Case& c : cases) {
    const Ids answer = IdsOf(*tokenizer, c.answer);
    state.emits_replacement = false;
    EXPECT_EQ(TextFrom(*tokenizer, true, state, answer), c.text);
    state.emits_replacement = true;
    EXPECT_EQ(TextFrom(*tokenizer, true, state, answer), c.text_with_cut);
  }
}

TEST(DetokenizerTest, OpenCharactersCountsOnlyThoseOfTheOutput) {
  const auto tokenizer = LoadTokenizer("llama2-style");
  const Ids cut = IdsOf(*tokenizer, {"▁a", "<0xE2>"});
  Detokenizer detokenizer(*tokenizer, true);
  detokenizer.Begin(Detokenizer::StateAfter(*tokenizer, true, cut));
  EXPECT_EQ(detokenizer.open_characters(), 0);  // the prompt has begun it
  EXPECT_EQ(detokenizer.Push(IdsOf(*tokenizer, {"▁a"})[0]), " a");
  detokenizer.Push(IdsOf(*tokenizer, {"<0xF0>"})[0]);
  detokenizer.Push(IdsOf(*tokenizer, {"<0x9F>"})[0]);
  EXPECT_EQ(detokenizer.open_characters(), 1);
  DetokenizerState state = Detokenizer::StateAfter(*tokenizer, true, cut);
  state.emits_replacement = true;
  Detokenizer behind_echo(*tokenizer, true);
  behind_echo.Begin(state);
  EXPECT_EQ(behind_echo.open_characters(), 1);
}

TEST(DetokenizerTest, VerbatimTextEqualsTheBytesOfTheTokens) {
  for (const char* const name : {"llama2-style", "unigram-nmt-nfkc", "decoder-none",
                                 "llama2-sentencepiece", "decoder-strip-three"}) {
    const auto tokenizer = LoadTokenizer(name);
    std::mt19937 random(7);
    for (int round = 0; round < 50; ++round) {
      Ids ids;
      std::string bytes, expected;
      for (int i = 0; i < 5; ++i) {
        ids.push_back(static_cast<std::int32_t>(
            random() % static_cast<std::uint32_t>(tokenizer->vocab_size())));
        bytes += tokenizer->TokenBytes(ids.back());
      }
      Utf8Repairer repairer;
      repairer.Push(bytes, expected);
      repairer.Finish(expected);
      EXPECT_EQ(TextFrom(*tokenizer, false, Detokenizer::Verbatim(), ids), expected) << name;
    }
  }
}

// The texts of prompt and output concatenate to the text of both together, for every decoder. If
// the prompt does not end inside a character that the output completes, the first text is
// Decode(prompt).
TEST(DetokenizerTest, PromptAndOutputConcatenateToTheDecodedText) {
  std::mt19937 random(34);
  for (const std::string& name : FolderNames(TokenizerData() / "cases")) {
    const auto tokenizer = LoadTokenizer(name);
    const auto draw = [&](std::size_t most) {
      Ids ids;
      for (std::size_t size = random() % (most + 1); size > 0; --size) {
        const auto id = static_cast<std::int32_t>(
            random() % static_cast<std::uint32_t>(tokenizer->vocab_size()));
        if (tokenizer->HasText(id)) ids.push_back(id);
      }
      return ids;
    };
    for (int round = 0; round < 40; ++round) {
      const Ids prompt = draw(4);
      const Ids answer = draw(5);
      Ids both = prompt;
      both.insert(both.end(), answer.begin(), answer.end());
      for (const bool skip : {false, true}) {
        const std::string whole = *tokenizer->Decode(both, skip);
        std::string before = *tokenizer->Decode(prompt, skip);
        DetokenizerState state = Detokenizer::StateAfter(*tokenizer, skip, prompt);
        if (absl::StartsWith(whole, before)) {
          ASSERT_EQ(before + TextFrom(*tokenizer, skip, state, answer), whole) << name;
        }
        if (!state.is_cut()) continue;
        ASSERT_TRUE(absl::EndsWith(before, kReplacementCharacter));
        before.resize(before.size() - kReplacementCharacter.size());
        state.emits_replacement = true;
        ASSERT_EQ(before + TextFrom(*tokenizer, skip, state, answer), whole) << name;
      }
    }
  }
}

}  // namespace
}  // namespace quire::text
