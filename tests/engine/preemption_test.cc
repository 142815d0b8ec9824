// Victim selection when a running sequence cannot grow.

#include "engine/scheduler/preemption.h"

#include <algorithm>
#include <array>
#include <memory>
#include <vector>

#include "engine/scheduler/scheduler_policy.h"
#include "gtest/gtest.h"

namespace quire::engine {
namespace {

class PreemptionTest : public ::testing::Test {
 protected:
  // Three decoding requests, admitted one after the other.
  PreemptionTest() {
    for (std::uint64_t i = 1; i <= 3; ++i) {
      requests_.push_back(std::make_unique<ScheduledRequest>(
          std::make_shared<AcceptedRequest>(Request{}, i, /*worker=*/0, /*output=*/nullptr)));
      requests_.back()->prompt.max_cached_tokens = 1000;
      requests_.back()->tenant_requests = &one_;
      Sequence& sequence = requests_.back()->first();
      sequence.Enter(SequenceState::kQueued);
      sequence.Enter(SequenceState::kPrefill);
      sequence.Enter(SequenceState::kDecode);
      sequence.num_pages = 3;
      sequence.admission_number = i;
      running_.push_back(&sequence);
    }
  }
  // Returns the index of the victim if only the requests marked in `frees` free pages.
  std::ptrdiff_t Victim(std::array<bool, 3> frees) {
    const auto index = [&](const Sequence* sequence) {
      return std::ranges::find(running_, sequence) - running_.begin();
    };
    const std::int32_t max_preemptions = SchedulerPolicy().max_preemptions;
    return index(
        ChooseVictim(running_, /*page_size=*/16, max_preemptions, [&](const Sequence& sequence) {
          return frees[static_cast<std::size_t>(index(&sequence))];
        }));
  }

  TenantRequests one_{.live = 2, .running = 2, .last_start = 2};
  TenantRequests two_{.live = 1, .running = 1, .last_start = 3};
  std::vector<std::unique_ptr<ScheduledRequest>> requests_;
  std::vector<Sequence*> running_;
};

TEST_F(PreemptionTest, PreemptsARequestThatFreesPages) {
  EXPECT_EQ(Victim({true, true, true}), 2) << "the latest admission";
  EXPECT_EQ(Victim({true, true, false}), 1) << "the latest shares all its pages";
  EXPECT_EQ(Victim({false, true, false}), 1);
}

TEST_F(PreemptionTest, SparesTheOldestEvenIfOnlyItFreesPages) {
  EXPECT_EQ(Victim({true, false, false}), 2)
      << "preempting the others also frees the pages that they share";
}

TEST_F(PreemptionTest, PrefersARequestNearItsEndToOneThatFreesNothing) {
  running_[1]->computed = 990;
  EXPECT_EQ(Victim({true, true, true}), 2);
  EXPECT_EQ(Victim({true, true, false}), 1);
}

// A priority protects only from requests of the same tenant.
TEST_F(PreemptionTest, PreemptsTheTenantWithMostRows) {
  requests_[2]->tenant_requests = &two_;
  EXPECT_EQ(Victim({true, true, true}), 1);
  two_.running = 3;
  EXPECT_EQ(Victim({true, true, true}), 2);
  two_.running = 2;
  EXPECT_EQ(Victim({true, true, true}), 2) << "it was admitted last";
}

}  // namespace
}  // namespace quire::engine
