#pragma once

// A tiny CacheManager and the initial steps shared by most of its tests.

#include <memory>
#include <span>
#include <vector>

#include "gtest/gtest.h"
#include "tests/cache_manager/cache_test_util.h"

namespace quire::cache {

inline constexpr std::uint32_t kP = kTestPageSize;
inline constexpr Hash128 kRoot{1, 1};
inline constexpr Hash128 kOtherRoot{2, 2};
inline constexpr BatchRow kA{0}, kB{1}, kC{2};

class CacheManagerTest : public ::testing::Test {
 protected:
  explicit CacheManagerTest(CacheManagerOptions options = TinyOptions(20))
      : options_(options), cache_(MakeCache(options)) {}
  ~CacheManagerTest() override { EXPECT_EQ(cache_->CheckIntegrity(), absl::OkStatus()); }

  PrefixMatch Match(const Tokens& tokens, const Hash128& root = kRoot) const {
    const auto limit = static_cast<std::uint32_t>(tokens.size()) - 1;
    return cache_->Match(tokens, KeysOf(options_, root, tokens), root, limit);
  }
  std::uint32_t MatchedTokens(const Tokens& tokens, const Hash128& root = kRoot) const {
    return Match(tokens, root).num_tokens;
  }
  // Admits the tokens and runs one step over the tokens that are not cached. Returns the number of
  // cached tokens.
  std::uint32_t Start(BatchRow row, const Tokens& tokens, const Hash128& root = kRoot) {
    const PrefixMatch match = Match(tokens, root);
    const auto size = static_cast<std::uint32_t>(tokens.size());
    EXPECT_TRUE(cache_->Attach(row, match, root).ok());
    EXPECT_TRUE(cache_->Reserve(row, size).ok());
    cache_->CountLookup(match, size);
    const RowStep step{row, match.num_tokens, size - match.num_tokens};
    cache_->PrepareStep(std::span(&step, 1));
    RunStepWork();
    return match.num_tokens;
  }
  void RunStepWork() {
    cache_->TakeClears();
    cache_->TakeCopies();
    cache_->CompleteStep();
  }
  void Publish(BatchRow row, const Tokens& tokens, const Hash128& root = kRoot) {
    auto keys = KeysOf(options_, root, tokens);
    cache_->Publish(row, tokens, &keys, static_cast<std::uint32_t>(tokens.size()));
  }
  std::uint32_t StartAndPublish(BatchRow row, const Tokens& tokens, const Hash128& root = kRoot) {
    const std::uint32_t cached = Start(row, tokens, root);
    Publish(row, tokens, root);
    return cached;
  }
  void FreeKeepingTail(BatchRow row, const Tokens& tokens) {
    cache_->FreeKeepingTail(row, tokens, KeysOf(options_, kRoot, tokens),
                            static_cast<std::uint32_t>(tokens.size()));
  }
  // REQUIRES: the row owns its first column.
  void Invalidate(BatchRow row, std::uint32_t first_token) {
    cache_->Invalidate(row, {}, {}, first_token);
  }
  BlockId PageOf(BatchRow row, std::uint32_t column, std::size_t group = 0) const {
    return CacheManagerPeer::page(*cache_, row, column, group);
  }
  // Reserves every available page for the row.
  void Fill(BatchRow row) {
    ASSERT_TRUE(cache_->Reserve(row, cache_->available_pages() * kP).ok());
  }

  CacheManagerOptions options_;
  std::unique_ptr<CacheManager> cache_;
};

}  // namespace quire::cache
