#include "base/keyed_hash.h"

#include <highwayhash/highwayhash_target.h>
#include <highwayhash/instruction_sets.h>

#include <algorithm>
#include <random>
#include <span>
#include <vector>

#include "absl/hash/hash_testing.h"
#include "gtest/gtest.h"

namespace quire {
namespace {

constexpr HashKey kKey{
    {0x0706050403020100, 0x0F0E0D0C0B0A0908, 0x1716151413121110, 0x1F1E1D1C1B1A1918}};

std::vector<std::byte> Counting(std::size_t size) {
  std::vector<std::byte> bytes(size);
  for (std::size_t i = 0; i < size; ++i) bytes[i] = static_cast<std::byte>(i);
  return bytes;
}

// The published HighwayHash-128 results for this key and the bytes 0, 1, 2, ... They cover every
// length modulo 4 with and without 16 bytes before it, and both sides of the packet size.
TEST(KeyedHashTest, EqualsThePublishedResults) {
  struct Answer {
    std::size_t size;
    Hash128 hash;
  };
  const Answer answers[] = {{0, {0x0FED268F9D8FFEC7, 0x33565E767F093E6F}},
                            {1, {0xD6B0A8893681E7A8, 0xDC291DF9EB9CDCB4}},
                            {2, {0x3D15AD265A16DA04, 0x78085638DC32E868}},
                            {3, {0x0607621B295F0BEB, 0xBFE69A0FD9CEDD79}},
                            {4, {0x26399EB46DACE49E, 0x2E922AD039319208}},
                            {7, {0x2A401FCA697171B4, 0xBE1F03FF9F02796C}},
                            {15, {0x142237A52BC4AF54, 0xE0796C0B6E26BCD7}},
                            {16, {0x414460FFD5A401AD, 0x029EA3D5019F18C8}},
                            {17, {0xC52A4B96C51C9962, 0xECB878B1169B5EA0}},
                            {18, {0xD940CA8F11FBEACE, 0xF93A46D616F8D531}},
                            {19, {0x8AC49D0AE5C0CBF5, 0x3FFDBF8DF51D7C93}},
                            {31, {0x06E7B465E8A57C29, 0x52415E3A07F5D446}},
                            {32, {0x1984DF66C1434AAA, 0x16FC1958F9B3E4B9}},
                            {33, {0x111678AFE0C6C36C, 0xF958B59DE5A2849D}},
                            {63, {0x74BD7018022F3EF0, 0x3AEA94A8AD5F4BCB}},
                            {64, {0x98BB1F7198D4C4F2, 0xE0BC0571DE918FC8}}};
  for (const Answer& answer : answers) {
    EXPECT_EQ(KeyedHash(kKey, Counting(answer.size)), answer.hash) << answer.size;
  }
}

TEST(KeyedHashTest, SplittingDoesNotChangeTheHash) {
  const std::vector<std::byte> bytes = Counting(200);
  const Hash128 whole = KeyedHash(kKey, bytes);
  std::mt19937 random(3);
  for (int trial = 0; trial < 500; ++trial) {
    std::vector<std::span<const std::byte>> fragments;
    for (std::size_t at = 0; at < bytes.size();) {
      const std::size_t take = std::min<std::size_t>(random() % 70, bytes.size() - at);
      fragments.push_back(std::span(bytes).subspan(at, take));
      at += take;
    }
    ASSERT_EQ(KeyedHash(kKey, fragments), whole);
    const std::size_t cut = random() % bytes.size();
    ASSERT_EQ(KeyedHash(kKey, std::span(bytes).first(cut), std::span(bytes).subspan(cut)), whole);
  }
}

// Expects the result of each instruction set that this processor supports.
template <highwayhash::TargetBits kTarget>
struct ExpectHash {
  void operator()(const std::vector<std::byte>& bytes, const Hash128& want) const {
    const highwayhash::HHKey key = {kKey.words[0], kKey.words[1], kKey.words[2], kKey.words[3]};
    const highwayhash::StringView view{reinterpret_cast<const char*>(bytes.data()), bytes.size()};
    highwayhash::HHResult128 hash;
    highwayhash::HighwayHashCat<kTarget>()(key, &view, 1, &hash);
    EXPECT_EQ((Hash128{hash[0], hash[1]}), want) << bytes.size() << " bytes, " << kTarget;
  }
};

TEST(KeyedHashTest, InstructionSetDoesNotChangeTheHash) {
  std::mt19937 random(5);
  for (int trial = 0; trial < 500; ++trial) {
    std::vector<std::byte> bytes(random() % 300);
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
    highwayhash::InstructionSets::RunAll<ExpectHash>(bytes, KeyedHash(kKey, bytes));
  }
}

TEST(KeyedHashTest, KeyAndLengthMatter) {
  EXPECT_NE(KeyedHash(HashKey{}, Counting(10)), KeyedHash(kKey, Counting(10)));
  const std::vector<std::byte> zeros(64);
  for (std::size_t size = 0; size < 64; ++size) {
    EXPECT_NE(KeyedHash(kKey, std::span(zeros).first(size)),
              KeyedHash(kKey, std::span(zeros).first(size + 1)));
  }
}

TEST(KeyedHashTest, HashesAreTableKeys) {
  EXPECT_TRUE(absl::VerifyTypeImplementsAbslHashCorrectly(
      {Hash128{}, Hash128{1, 0}, Hash128{0, 1}, Hash128{1, 1}}));
}

}  // namespace
}  // namespace quire
