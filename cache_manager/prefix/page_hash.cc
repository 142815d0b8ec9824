#include "cache_manager/prefix/page_hash.h"

#include <array>
#include <cstddef>
#include <cstring>

namespace quire::cache {
namespace {

// The first word of every hashed stream, so that a root can never be mistaken for a page.
constexpr std::uint64_t kRootDomain = 0x746f6f72;  // "root"
constexpr std::uint64_t kPageDomain = 0x65676170;  // "page"

void UpdateField(KeyedHasher& hasher, absl::string_view field) {
  hasher.UpdateValue(std::uint64_t{field.size()}).Update(field);
}

}  // namespace

Hash128 HashRoot(const HashKey& key, const PrefixScope& scope) {
  KeyedHasher hasher(key);
  hasher.UpdateValue(kRootDomain);
  UpdateField(hasher, scope.tenant);
  UpdateField(hasher, scope.fingerprint);
  UpdateField(hasher, scope.salt);
  return hasher.Finish();
}

// The first packet of the hash is made here: parts of packets would go through its buffer.
PageKey HashPage(const HashKey& key, const Hash128& parent, std::span<const std::int32_t> tokens) {
  std::array<std::uint64_t, 4> head{kPageDomain, parent.lo, parent.hi};
  constexpr std::size_t kFirstTokens = 2;
  KeyedHasher hasher(key);
  if (tokens.size() < kFirstTokens) {
    hasher.Update(std::as_bytes(std::span(head).first(3)));
  } else {
    std::memcpy(&head[3], tokens.data(), sizeof(head[3]));
    hasher.Update(std::as_bytes(std::span(head)));
    tokens = tokens.subspan(kFirstTokens);
  }
  return hasher.Update(std::as_bytes(tokens)).Finish();
}

std::vector<PageKey> HashPages(const HashKey& key, const Hash128& root,
                               std::span<const std::int32_t> tokens, std::uint32_t page_size) {
  std::vector<PageKey> keys;
  keys.reserve(tokens.size() / page_size);
  Hash128 parent = root;
  for (std::size_t begin = 0; begin + page_size <= tokens.size(); begin += page_size) {
    parent = HashPage(key, parent, tokens.subspan(begin, page_size));
    keys.push_back(parent);
  }
  return keys;
}

}  // namespace quire::cache
