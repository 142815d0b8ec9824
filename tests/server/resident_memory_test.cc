#include "server/resident_memory.h"

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#include "base/clock.h"

namespace quire::server {
namespace {

constexpr std::int64_t kMiB = 1 << 20;

// Large blocks with one small, longer-lived block after every few of them, so that hardly any page
// is without a small block.
class Flood {
 public:
  // If `on_thread`, the blocks are allocated in the heap of a thread that ends.
  Flood(int num_pages, std::size_t small_bytes, bool on_thread) {
    const auto fill = [&] {
      for (int i = 0; i < num_pages; ++i) {
        for (int k = 0; k < 4; ++k) large_.push_back(Block(960));
        small_.push_back(Block(small_bytes));
      }
    };
    large_.reserve(4 * static_cast<std::size_t>(num_pages));
    small_.reserve(static_cast<std::size_t>(num_pages));
    on_thread ? std::thread(fill).join() : fill();
  }
  void FreeLarge() { std::vector<std::unique_ptr<char[]>>().swap(large_); }
  void FreeSmall() { std::vector<std::unique_ptr<char[]>>().swap(small_); }

 private:
  static std::unique_ptr<char[]> Block(std::size_t size) {
    std::unique_ptr<char[]> block(new char[size]);
    std::memset(block.get(), 1, size);
    return block;
  }
  std::vector<std::unique_ptr<char[]>> large_, small_;
};

class MemoryTrimmerTest : public ::testing::Test {
 protected:
  MemoryTrimmerTest() {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    unavailable_ = true;
#endif
    LimitFreeHeapTops();
    TickFor(absl::Seconds(30));
    before_ = ResidentBytes();
  }
  // Calls Tick as the housekeeper thread does, but without waiting.
  void TickFor(absl::Duration time) {
    for (const absl::Time end = now_ + time; now_ < end; now_ += absl::Milliseconds(100)) {
      memory_.Tick(now_);
    }
  }
  std::int64_t more_mib() const {
    return (ResidentBytes() - before_) / kMiB;
  }

  bool unavailable_ = false;
  absl::Time now_ = MonotonicNow();
  MemoryTrimmer memory_;
  std::int64_t before_ = 0;
};

TEST_F(MemoryTrimmerTest, FreedPagesAreReturnedWithinHalfAMinute) {
  if (unavailable_) GTEST_SKIP() << "a sanitizer has its own allocator";
  for (const bool on_thread : {false, true}) {
    Flood flood(20000, 40, on_thread);
    EXPECT_GT(more_mib(), 70);
    flood.FreeLarge();
    flood.FreeSmall();
    TickFor(absl::Seconds(30));
    EXPECT_LT(more_mib(), 8) << on_thread;
  }
}

// The last blocks of the pages are small: freeing them releases too few bytes to trigger a trim.
TEST_F(MemoryTrimmerTest, PagesPinnedBySmallBlocksAreReturnedWithinHalfAMinuteOfTheirFree) {
  if (unavailable_) GTEST_SKIP() << "a sanitizer has its own allocator";
  for (const bool on_thread : {false, true}) {
    for (const std::size_t small_bytes : {24u, 40u, 100u}) {
      Flood flood(20000, small_bytes, on_thread);
      TickFor(absl::Seconds(7));
      flood.FreeLarge();
      TickFor(absl::Seconds(12));  // trims without effect
      EXPECT_GT(more_mib(), 60);
      flood.FreeSmall();
      TickFor(absl::Seconds(30));
      EXPECT_LT(more_mib(), 8) << on_thread << " " << small_bytes;
    }
  }
}

}  // namespace
}  // namespace quire::server
