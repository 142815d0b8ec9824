#include "base/keyed_hash.h"

#include <highwayhash/highwayhash_target.h>
#include <highwayhash/instruction_sets.h>

#include <array>
#include <vector>

namespace quire {
namespace {

namespace hh = highwayhash;

hh::StringView View(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

Hash128 Hash(const HashKey& key, std::span<const hh::StringView> fragments) {
  const hh::HHKey words = {key.words[0], key.words[1], key.words[2], key.words[3]};
  hh::HHResult128 hash;
  hh::InstructionSets::Run<hh::HighwayHashCat>(words, fragments.data(), fragments.size(), &hash);
  return {hash[0], hash[1]};
}

}  // namespace

Hash128 KeyedHash(const HashKey& key, std::span<const std::span<const std::byte>> fragments) {
  std::vector<hh::StringView> views;
  views.reserve(fragments.size());
  for (const std::span<const std::byte> bytes : fragments) views.push_back(View(bytes));
  return Hash(key, views);
}

Hash128 KeyedHash(const HashKey& key, std::span<const std::byte> bytes,
                  std::span<const std::byte> more) {
  const std::array<hh::StringView, 2> views = {View(bytes), View(more)};
  return Hash(key, views);
}

}  // namespace quire
