// The state slots of a cache for a model with recurrent layers.

#include <algorithm>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/cache_manager/cache_manager_fixture.h"

namespace quire::cache {
namespace {

using ::testing::HasSubstr;

constexpr std::uint32_t kSlack = RowStates::kSlackTokens;

CacheManagerOptions WithSlots(std::uint32_t snapshots) {
  CacheManagerOptions options = TinyOptions(60);
  options.max_rows = 4;
  options.num_state_slots = 1 + options.max_rows + snapshots;
  return options;
}

class CacheStatesTest : public CacheManagerTest {
 protected:
  CacheStatesTest() : CacheManagerTest(WithSlots(6)) {}

  // Runs one step over [from, to) of the row, and publishes its pages.
  void Step(BatchRow row, const Tokens& tokens, std::uint32_t from, std::uint32_t to) {
    const RowStep step{row, from, to - from};
    cache_->PrepareStep(std::span(&step, 1));
    RunStepWork();
    cache_->SetProven(row, to);
    auto keys = KeysOf(options_, kRoot, tokens);
    cache_->Publish(row, tokens, &keys, to);
  }
  // Admits the tokens and computes them in chunks. Returns the number of cached tokens.
  std::uint32_t Prompt(BatchRow row, const Tokens& tokens, std::uint32_t chunk = 1000) {
    const PrefixMatch match = Match(tokens);
    const auto size = static_cast<std::uint32_t>(tokens.size());
    EXPECT_TRUE(cache_->Attach(row, match, kRoot, size).ok());
    EXPECT_TRUE(cache_->Reserve(row, size).ok());
    cache_->CountLookup(match, size);
    for (std::uint32_t at = match.num_tokens; at < size; at += chunk) {
      Step(row, tokens, at, std::min(at + chunk, size));
    }
    return match.num_tokens;
  }
  StateSlot SlotOf(BatchRow row) { return RowStatesPeer::row(states(), row.value()).own; }
  RowStates& states() { return CacheManagerPeer::row_states(*cache_); }
  StatePool& pool() { return CacheManagerPeer::states(*cache_); }
  std::uint32_t num_snapshots() const { return cache_->stats().snapshot_state_slots; }
};

TEST_F(CacheStatesTest, ARepeatedPromptComputesAtMostAPageAndTheSlack) {
  std::int32_t first = 0;
  for (std::uint32_t pages = 3; pages < 6; ++pages) {
    for (const std::uint32_t size : {pages * kP - 1, pages * kP, pages * kP + 1}) {
      const Tokens tokens = Count(size, first += 1000);
      EXPECT_EQ(Prompt(kA, tokens), 0u);
      cache_->Free(kA);
      const std::uint32_t cached = Prompt(kA, tokens);
      cache_->Free(kA);
      EXPECT_EQ(cached, (size - 1 - kSlack) / kP * kP);
      EXPECT_LE(size - cached, kP + kSlack + 1);
    }
  }
}

TEST_F(CacheStatesTest, TheSnapshotIsTakenInWhicheverChunkPassesIt) {
  const Tokens tokens = Count(5 * kP);
  for (const std::uint32_t chunk : {1u, 7u, kP, kP + 1, 5 * kP}) {
    EXPECT_EQ(Prompt(kA, tokens, chunk), 0u);
    cache_->Free(kA);
    EXPECT_EQ(Match(tokens).num_tokens, 3 * kP) << "chunks of " << chunk;
    cache_->Flush();
  }
}

TEST_F(CacheStatesTest, APromptThatLeavesASharedPathLeavesItsStateThere) {
  const Tokens shared = Count(4 * kP);
  EXPECT_EQ(Prompt(kA, shared + Count(3 * kP, 1000)), 0u);
  cache_->Free(kA);
  // The pages of `shared` are found, but no state follows them.
  EXPECT_EQ(Prompt(kA, shared + Count(3 * kP, 2000)), 0u);
  cache_->Free(kA);
  EXPECT_EQ(cache_->stats().tokens_without_state, 4 * kP);
  EXPECT_EQ(Prompt(kA, shared + Count(3 * kP, 3000)), 4 * kP);
  cache_->Free(kA);
  EXPECT_EQ(cache_->stats().tokens_without_state, 4 * kP);
}

TEST_F(CacheStatesTest, ASequenceContinuesFromTheEndOfTheOneBefore) {
  for (const std::uint32_t size : {3 * kP, 3 * kP + 1, 3 * kP + 9}) {
    const Tokens tokens = Count(size, static_cast<std::int32_t>(size) * 1000);
    Prompt(kA, tokens);
    FreeKeepingTail(kA, tokens);
    EXPECT_EQ(MatchedTokens(tokens + Count(kP, 7)), size);
    EXPECT_EQ(Match(tokens + Count(kP, 7)).tokens_without_state, 0u);
    // The state follows all tokens of the tail, so a prompt that differs in the last one cannot use
    // it, and neither can one that ends with it.
    Tokens edited = tokens;
    edited.back() = 5;
    EXPECT_LT(MatchedTokens(edited + Count(kP, 7)), size - kSlack);
    EXPECT_LT(MatchedTokens(tokens), size - kSlack);
  }
}

TEST_F(CacheStatesTest, MatchesWithoutCopiesEndAtAPage) {
  const Tokens tokens = Count(3 * kP + 9);
  Prompt(kA, tokens);
  FreeKeepingTail(kA, tokens);
  const Tokens next = tokens + Count(kP, 7);
  const PrefixMatch match =
      cache_->Match(next, KeysOf(options_, kRoot, next), kRoot, 4 * kP, /*may_copy=*/false);
  EXPECT_EQ(match.num_tokens, 2 * kP);
  EXPECT_EQ(match.tokens_without_state, kP);
  EXPECT_EQ(match.partial_rows, 0u);
}

TEST_F(CacheStatesTest, PromptsLeaveSnapshotsAtIntervals) {
  options_ = WithSlots(8);
  options_.state_interval_tokens = 2 * kP;
  cache_ = MakeCache(options_);
  const Tokens tokens = Count(9 * kP + 3);
  Prompt(kA, tokens, kP);
  cache_->Free(kA);
  EXPECT_EQ(num_snapshots(), 4u);
  for (const std::uint32_t pages : {2u, 4u, 6u}) {
    Tokens edited = tokens;
    edited[pages * kP + 1] = -1;
    EXPECT_EQ(MatchedTokens(edited), pages * kP);
  }
  EXPECT_EQ(MatchedTokens(tokens), 8 * kP);
}

TEST_F(CacheStatesTest, TheFirstStepReadsTheSnapshotAndWritesTheRowsOwnSlot) {
  const Tokens tokens = Count(4 * kP);
  Prompt(kA, tokens);
  const PrefixMatch match = Match(tokens);
  ASSERT_TRUE(cache_->Attach(kB, match, kRoot, 4 * kP).ok());
  ASSERT_TRUE(cache_->Reserve(kB, 4 * kP + 2).ok());
  const RowStep first{kB, match.num_tokens, 4 * kP - match.num_tokens};
  cache_->PrepareStep(std::span(&first, 1));
  const StateStepInputs& inputs = cache_->state_inputs();
  EXPECT_EQ(inputs.state_in[1], match.state.value());
  EXPECT_EQ(inputs.state_out[1], SlotOf(kB).value());
  EXPECT_NE(inputs.state_in[1], inputs.state_out[1]);
  EXPECT_EQ(inputs.state_out[0], 0u);
  EXPECT_EQ(pool().readers(match.state), 1u);
  RunStepWork();
  EXPECT_EQ(pool().readers(match.state), 0u);
  const RowStep second{kB, 4 * kP, 1};
  cache_->PrepareStep(std::span(&second, 1));
  EXPECT_EQ(inputs.state_in[1], SlotOf(kB).value());
  EXPECT_EQ(inputs.state_out[1], SlotOf(kB).value());
  RunStepWork();
  EXPECT_EQ(inputs.state_out[1], 0u);
}

TEST_F(CacheStatesTest, ForksReadTheParentsSlotAndWriteTheirOwn) {
  const Tokens tokens = Count(kP + 3);
  Prompt(kA, tokens);
  const StateSlot slot = SlotOf(kA);
  for (const BatchRow child : {kB, kC}) ASSERT_TRUE(cache_->Fork(kA, child, kP + 3).ok());
  EXPECT_EQ(pool().state(slot), SlotState::kFrozen);
  EXPECT_EQ(pool().readers(slot), 3u);
  std::vector<RowStep> steps;
  for (const BatchRow row : {kA, kB, kC}) {
    ASSERT_TRUE(cache_->Reserve(row, kP + 4).ok());
    steps.push_back({row, kP + 3, 1});
  }
  cache_->PrepareStep(steps);
  for (const BatchRow row : {kA, kB, kC}) {
    EXPECT_EQ(cache_->state_inputs().state_in[row.value()], slot.value());
    EXPECT_EQ(cache_->state_inputs().state_out[row.value()], SlotOf(row).value());
  }
  RunStepWork();
  EXPECT_EQ(pool().state(slot), SlotState::kFree);
}

TEST_F(CacheStatesTest, AForkedRowThatEndsBeforeItsFirstStepLeavesTheSharedState) {
  const Tokens tokens = Count(2 * kP);
  Prompt(kA, tokens);
  ASSERT_TRUE(cache_->Fork(kA, kB, 2 * kP).ok());
  FreeKeepingTail(kB, tokens);
  EXPECT_EQ(MatchedTokens(tokens + Tokens{1}), 2 * kP);
  cache_->Free(kA);
  EXPECT_EQ(MatchedTokens(tokens + Tokens{1}), 2 * kP);
}

TEST_F(CacheStatesTest, ARowNeedsASlotAllOrNothing) {
  Prompt(kA, Count(kP + 2));
  std::vector<StateSlot> taken;
  while (cache_->available_state_slots() > 1) taken.push_back(pool().Allocate());
  const std::uint32_t pages = cache_->available_pages();
  const absl::Status no_fork = cache_->Fork(kA, kB, kP + 2);
  EXPECT_EQ(no_fork.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(no_fork.message(), HasSubstr("needs 2 state slots, 1 available"));
  EXPECT_EQ(cache_->available_pages(), pages);
  EXPECT_EQ(cache_->num_pages(kB), 0u);
  taken.push_back(pool().Allocate());
  const absl::Status refused = cache_->Reserve(kC, kP);
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(refused.message(), HasSubstr("needs 1 state slots, 0 available"));
  EXPECT_EQ(cache_->Attach(kC, {}, kRoot).code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(cache_->available_pages(), pages);
  EXPECT_EQ(cache_->num_pages(kC), 0u);
  const std::uint64_t changes = cache_->num_changes();
  for (const StateSlot slot : taken) pool().Free(slot);
  EXPECT_GT(cache_->num_changes(), changes);
  EXPECT_TRUE(cache_->Reserve(kC, kP).ok());
  EXPECT_TRUE(cache_->Fork(kA, kB, kP + 2).ok());
}

TEST_F(CacheStatesTest, TheColdestSnapshotIsEvictedAndItsPagesStay) {
  options_ = WithSlots(2);
  cache_ = MakeCache(options_);
  std::vector<Tokens> prompts;
  for (std::int32_t i = 0; i < 6; ++i) {
    prompts.push_back(Count(3 * kP, i * 1000));
    Prompt(kA, prompts.back());
    cache_->Free(kA);
  }
  EXPECT_EQ(num_snapshots(), 5u);  // the prompts wrote six
  EXPECT_EQ(MatchedTokens(prompts[0]), 0u);
  EXPECT_EQ(Match(prompts[0]).tokens_without_state, 2 * kP);
  for (std::size_t i = 1; i < 6; ++i) EXPECT_EQ(MatchedTokens(prompts[i]), kP);
}

// A cache with 16 slots besides those of rows. Nine conversations have one snapshot each.
class ManyConversationsTest : public CacheStatesTest {
 protected:
  ManyConversationsTest() {
    options_ = TinyOptions(400, 4, 1600);
    options_.num_state_slots = 1 + options_.max_rows + 16;
    options_.state_interval_tokens = 2 * kP;
    cache_ = MakeCache(options_);
    for (std::int32_t i = 0; i < 9; ++i) {
      conversations_.push_back(Count(3 * kP, 10000 + i * 1000));
      Prompt(kB, conversations_.back());
      cache_->Free(kB);
    }
  }
  void ExpectAllConversations() {
    for (const Tokens& tokens : conversations_) EXPECT_EQ(MatchedTokens(tokens), kP);
  }

  std::vector<Tokens> conversations_;
};

TEST_F(ManyConversationsTest, ALongPromptThinsItsOwnSnapshots) {
  const Tokens tokens = Count(90 * kP);
  Prompt(kA, tokens, 2 * kP);
  cache_->Free(kA);
  ExpectAllConversations();
  EXPECT_EQ(MatchedTokens(tokens), 88 * kP);
  // The snapshots that are left lie apart, so an edit anywhere loses less than half of the prompt.
  for (std::uint32_t page = 8; page < 88; ++page) {
    Tokens edited = tokens;
    edited[page * kP] = -1;
    EXPECT_LT(page * kP - MatchedTokens(edited), 45 * kP) << page;
  }
}

TEST_F(ManyConversationsTest, ManyTurnsThinTheSnapshotsOfTheirConversation) {
  Tokens tokens = Count(40);
  for (std::int32_t turn = 1; turn <= 40; ++turn) {
    Prompt(kA, tokens);
    FreeKeepingTail(kA, tokens);
    EXPECT_EQ(cache_->CheckIntegrity(), absl::OkStatus());
    tokens = tokens + Count(21, turn * 100);
    EXPECT_EQ(MatchedTokens(tokens), tokens.size() - 21) << "turn " << turn;
  }
  ExpectAllConversations();
}

TEST_F(ManyConversationsTest, APathOfBranchesIsThinnedToo) {
  const Tokens tokens = Count(42 * kP);
  const auto prefix = [&](std::uint32_t pages) {
    return Tokens(tokens.begin(), tokens.begin() + pages * kP);
  };
  for (std::uint32_t pages = 2; pages <= 40; pages += 2) {
    Prompt(kA, prefix(pages) + Count(kP, 20000 + static_cast<std::int32_t>(pages) * 100));
    cache_->Free(kA);
  }
  Prompt(kA, tokens);
  cache_->Free(kA);
  std::uint32_t kept = 0;
  for (std::uint32_t pages = 2; pages <= 40; ++pages) {
    Tokens edited = prefix(pages);
    edited.push_back(-1);
    if (MatchedTokens(edited) == pages * kP) ++kept;
  }
  EXPECT_LE(kept, 8u + 2u);  // those at branches, and the last two
  EXPECT_GE(kept, 2u);
}

TEST_F(ManyConversationsTest, SnapshotsAtBranchesAndThoseThatAreReadStay) {
  const Tokens tokens = Count(90 * kP);
  Prompt(kA, Tokens(tokens.begin(), tokens.begin() + 12 * kP), 2 * kP);
  cache_->Free(kA);
  Tokens branch(tokens.begin(), tokens.begin() + 6 * kP);
  EXPECT_EQ(Prompt(kA, branch + Count(kP, 7000)), 6 * kP);
  cache_->Free(kA);
  Tokens reader(tokens.begin(), tokens.begin() + 8 * kP);
  reader.push_back(-1);
  const PrefixMatch match = Match(reader);
  ASSERT_EQ(match.num_tokens, 8 * kP);
  ASSERT_TRUE(cache_->Attach(kB, match, kRoot).ok());
  Prompt(kA, tokens, 2 * kP);
  cache_->Free(kA);
  branch.push_back(-1);
  EXPECT_EQ(MatchedTokens(branch), 6 * kP);
  EXPECT_EQ(MatchedTokens(reader), 8 * kP);
  ExpectAllConversations();
  cache_->Free(kB);
}

TEST_F(CacheStatesTest, ASnapshotThatARowReadsIsNotEvicted) {
  options_ = WithSlots(2);
  cache_ = MakeCache(options_);
  const Tokens tokens = Count(3 * kP);
  Prompt(kA, tokens);
  cache_->Free(kA);
  ASSERT_TRUE(cache_->Attach(kA, Match(tokens), kRoot, 3 * kP).ok());
  for (std::int32_t i = 1; i < 8; ++i) {
    Prompt(kB, Count(3 * kP, i * 1000));
    cache_->Free(kB);
  }
  EXPECT_EQ(MatchedTokens(tokens), kP);
}

TEST_F(CacheStatesTest, TheSnapshotOfAMatchIsNotTakenAsTheRowsOwnSlot) {
  const Tokens tokens = Count(3 * kP);
  Prompt(kA, tokens);
  cache_->Free(kA);
  std::vector<StateSlot> taken;
  while (pool().num_free() > 0) taken.push_back(pool().Allocate());
  EXPECT_EQ(cache_->available_state_slots(), 1u);
  const PrefixMatch match = Match(tokens);
  ASSERT_EQ(match.num_tokens, kP);
  const absl::Status refused = cache_->Attach(kB, match, kRoot);
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(refused.message(), HasSubstr("needs 1 state slots, 0 available"));
  EXPECT_EQ(cache_->num_pages(kB), 0u);
  for (const StateSlot slot : taken) pool().Free(slot);
  EXPECT_TRUE(cache_->Attach(kB, match, kRoot).ok());
}

TEST_F(CacheStatesTest, RemovedNodesGiveTheirSlotsBack) {
  const Tokens tokens = Count(4 * kP + 5);
  Prompt(kA, tokens);
  FreeKeepingTail(kA, tokens);
  EXPECT_EQ(num_snapshots(), 2u);
  cache_->Flush();
  EXPECT_EQ(num_snapshots(), 0u);
  Prompt(kA, tokens);
  FreeKeepingTail(kA, tokens);
  EXPECT_EQ(num_snapshots(), 2u);
  for (std::uint32_t row = 0; row < 4; ++row) {  // evicts every page
    const std::uint32_t pages = std::min(cache_->available_pages(), 16u);
    ASSERT_TRUE(cache_->Reserve(BatchRow{row}, pages * kP).ok());
  }
  EXPECT_EQ(cache_->available_pages(), 0u);
  EXPECT_EQ(num_snapshots(), 0u);
  EXPECT_EQ(cache_->stats().free_state_slots, cache_->stats().state_slots - 4);
}

TEST_F(CacheStatesTest, NothingOfAFaultyStepIsFoundAgain) {
  const Tokens shared = Count(4 * kP);
  Prompt(kA, shared + Count(3 * kP, 1000));
  cache_->Free(kA);
  // The row leaves a snapshot at the end of proven pages, which stay, and is not finite.
  const Tokens tokens = shared + Count(3 * kP, 2000);
  ASSERT_TRUE(cache_->Attach(kB, Match(tokens), kRoot, 7 * kP).ok());
  ASSERT_TRUE(cache_->Reserve(kB, 7 * kP).ok());
  const RowStep step{kB, 0, 5 * kP};
  cache_->PrepareStep(std::span(&step, 1));
  RunStepWork();
  auto keys = KeysOf(options_, kRoot, tokens);
  cache_->Publish(kB, tokens, &keys, 5 * kP);
  EXPECT_EQ(MatchedTokens(tokens), 4 * kP);
  cache_->Invalidate(kB, tokens, keys, cache_->proven_tokens(kB));
  EXPECT_EQ(MatchedTokens(tokens), 0u);
  EXPECT_EQ(Match(tokens).tokens_without_state, 4 * kP);
}

TEST_F(CacheStatesTest, AStateThatFiniteLogitsFollowedOutlivesAFailedReader) {
  const Tokens tokens = Count(4 * kP);
  ASSERT_TRUE(cache_->Attach(kA, Match(tokens), kRoot, 4 * kP).ok());
  ASSERT_TRUE(cache_->Reserve(kA, 4 * kP).ok());
  const RowStep step{kA, 0, 3 * kP};
  cache_->PrepareStep(std::span(&step, 1));
  RunStepWork();
  auto keys = KeysOf(options_, kRoot, tokens);
  cache_->Publish(kA, tokens, &keys, 3 * kP);
  cache_->Free(kA);  // cancelled before its first logits
  EXPECT_EQ(Prompt(kB, tokens), 2 * kP);
  cache_->Invalidate(kB, tokens, keys, 0);
  EXPECT_EQ(MatchedTokens(tokens), 2 * kP) << "finite logits have followed from the state";
  cache_->Flush();
}

TEST_F(CacheStatesTest, AFailedReaderRemovesTheTentativeStateThatItRead) {
  const Tokens tokens = Count(4 * kP);
  ASSERT_TRUE(cache_->Attach(kA, Match(tokens), kRoot, 4 * kP).ok());
  ASSERT_TRUE(cache_->Reserve(kA, 4 * kP).ok());
  const RowStep first{kA, 0, 3 * kP};
  cache_->PrepareStep(std::span(&first, 1));
  RunStepWork();
  auto keys = KeysOf(options_, kRoot, tokens);
  cache_->Publish(kA, tokens, &keys, 3 * kP);
  cache_->Free(kA);  // cancelled before its first logits
  ASSERT_TRUE(cache_->Attach(kB, Match(tokens), kRoot, 4 * kP).ok());
  ASSERT_TRUE(cache_->Reserve(kB, 4 * kP).ok());
  const RowStep second{kB, 2 * kP, 2 * kP};
  cache_->PrepareStep(std::span(&second, 1));
  RunStepWork();
  // Finite values at the first token say nothing about a state that later tokens made.
  cache_->SetProven(kB, 1);
  cache_->Invalidate(kB, tokens, keys, cache_->proven_tokens(kB));
  EXPECT_EQ(MatchedTokens(tokens), 0u);
  EXPECT_EQ(cache_->CheckIntegrity(), absl::OkStatus());
}

TEST_F(CacheStatesTest, ARowFreedInFlightKeepsItsSlotUntilTheStepHasCompleted) {
  const Tokens tokens = Count(2 * kP);
  Prompt(kA, tokens);
  const StateSlot slot = SlotOf(kA);
  ASSERT_TRUE(cache_->Reserve(kA, 2 * kP + 1).ok());
  const RowStep step{kA, 2 * kP, 1};
  cache_->PrepareStep(std::span(&step, 1));
  // The state has one token more than the row's pages, so it is not kept.
  FreeKeepingTail(kA, tokens);
  EXPECT_EQ(pool().state(slot), SlotState::kQuarantined);
  EXPECT_EQ(cache_->CheckIntegrity(), absl::OkStatus());
  RunStepWork();
  EXPECT_EQ(pool().state(slot), SlotState::kFree);
  EXPECT_EQ(MatchedTokens(tokens + Tokens{1}), 0u);
}

TEST_F(CacheStatesTest, RowsThatDoNotPublishLeaveNoSnapshot) {
  const Tokens tokens = Count(4 * kP);
  ASSERT_TRUE(cache_->Attach(kA, {}, kRoot, 4 * kP).ok());
  cache_->SetPublish(kA, false);
  ASSERT_TRUE(cache_->Reserve(kA, 4 * kP).ok());
  Step(kA, tokens, 0, 4 * kP);
  FreeKeepingTail(kA, tokens);
  EXPECT_EQ(num_snapshots(), 0u);
}

TEST_F(CacheStatesTest, RefusesOptionsThatDoNotFit) {
  const auto error = [](CacheManagerOptions options) {
    const auto cache = CacheManager::Create(options);
    EXPECT_EQ(cache.status().code(), absl::StatusCode::kInvalidArgument);
    return std::string(cache.status().message());
  };
  CacheManagerOptions options = WithSlots(0);
  EXPECT_THAT(error(options), HasSubstr("num_state_slots is 5, must be at least 7 for max_rows 4"));
  options = WithWindows(WithSlots(2), {0, 32});
  EXPECT_THAT(error(options), HasSubstr("a group has a window of 32 tokens"));
  options = WithSlots(2);
  options.state_interval_tokens = 17;
  EXPECT_THAT(error(options), HasSubstr("state_interval_tokens is 17"));
}

// Row A has a state of its own and row B reads a snapshot of three pages.
TEST_F(CacheStatesTest, CheckIntegrityReportsBrokenInvariants) {
  using Peer = RowStatesPeer;
  const auto broken = [this](auto breakage) {
    cache_ = MakeCache(options_);
    const Tokens tokens = Count(4 * kP + 2);
    Prompt(kA, tokens);
    EXPECT_TRUE(cache_->Attach(kB, Match(tokens), kRoot, 4 * kP).ok());
    EXPECT_TRUE(cache_->CheckIntegrity().ok());
    breakage();
    const absl::Status status = cache_->CheckIntegrity();
    EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
    return std::string(status.message());
  };
  const auto snapshot = [this] { return Peer::row(states(), 1).source; };
  const auto node = [&] { return pool().node(snapshot()); };
  auto& prefixes = CacheManagerPeer::prefixes;
  // I13
  EXPECT_THAT(broken([&] { Peer::row(states(), 0).own = kNullSlot; }),
              HasSubstr("is live with 0 readers, but 0 rows write"));
  EXPECT_THAT(broken([&] { Peer::row(states(), 1).source = kNullSlot; }),
              HasSubstr("with 1 readers, but 0 rows write and 0 rows and steps read it"));
  EXPECT_THAT(broken([&] { Peer::row(states(), 2).own = SlotOf(kA); }),
              HasSubstr("is live with 0 readers, but 2 rows write"));
  EXPECT_THAT(broken([&] { Peer::row(states(), 0).snapshot_tokens = kP; }),
              HasSubstr("row 0 has snapshot slot 0 after 16 tokens"));
  // I14
  EXPECT_THAT(broken([&] { StatePoolPeer::slot(pool(), snapshot().value()).tokens = 2 * kP; }),
              HasSubstr("tokens but reads slot"));
  EXPECT_THAT(broken([&] {
                cache_->Free(kB);
                StatePoolPeer::slot(pool(), pool().EvictionOrder()[0].value()).tokens = 2 * kP;
              }),
              HasSubstr("ends after 48 tokens, but its state after 32"));
  EXPECT_THAT(broken([&] { PrefixCachePeer::node(prefixes(*cache_), node()).state = kNullSlot; }),
              HasSubstr("nodes have 0 snapshots, the pool counts 1"));
  EXPECT_THAT(broken([&] {
                const NodeId above = prefixes(*cache_).parent(node());
                PrefixCachePeer::node(prefixes(*cache_), above).state = snapshot();
              }),
              HasSubstr("which does not refer to the node"));
  // I15
  EXPECT_THAT(broken([&] { Peer::state_out(states(), 0) = snapshot().value(); }),
              HasSubstr("which is frozen"));
  EXPECT_THAT(broken([&] {
                Peer::state_out(states(), 0) = SlotOf(kA).value();
                Peer::snapshot_slot(states(), 1) = SlotOf(kA).value();
              }),
              HasSubstr("written twice"));
  // I16
  EXPECT_THAT(broken([&] {
                cache_->Free(kB);
                const NodeId of_a =
                    CacheManagerPeer::pool(*cache_).node(CacheManagerPeer::page(*cache_, kA, 2));
                PrefixCachePeer::page(prefixes(*cache_), of_a) = kNullBlock;
              }),
              HasSubstr("refers to page 0"));
  cache_ = MakeCache(options_);
}

TEST_F(CacheStatesTest, BrokenContracts) {
  Prompt(kA, Count(kP + 3));
  ASSERT_TRUE(cache_->Reserve(kA, kP + 9).ok());
  const RowStep gap{kA, kP + 4, 1};
  EXPECT_DEATH(cache_->PrepareStep(std::span(&gap, 1)), "check failed");
  const RowStep again{kA, kP + 2, 1};
  EXPECT_DEATH(cache_->PrepareStep(std::span(&again, 1)), "check failed");
  EXPECT_DEATH(cache_->Fork(kA, kB, kP).IgnoreError(), "check failed");
  const RowStep next{kA, kP + 3, 1};
  cache_->PrepareStep(std::span(&next, 1));
  const RowStep ahead{kA, kP + 4, 1};
  EXPECT_DEATH(cache_->PrepareStep(std::span(&ahead, 1)), "check failed");
  RunStepWork();
}

}  // namespace
}  // namespace quire::cache
