#include "cache_manager/prefix/page_hash.h"

#include <array>
#include <cstddef>
#include <string>

namespace quire::cache {
namespace {

// The first word of the hashed bytes. It ensures that keys of roots differ from keys of pages.
constexpr std::uint64_t kRootDomain = 0x746f6f72;  // "root"
constexpr std::uint64_t kPageDomain = 0x65676170;  // "page"

void AppendNumber(std::uint64_t number, std::string* bytes) {
  bytes->append(reinterpret_cast<const char*>(&number), sizeof(number));
}

void AppendField(absl::string_view field, std::string* bytes) {
  AppendNumber(field.size(), bytes);
  bytes->append(field.data(), field.size());
}

}  // namespace

Hash128 HashRoot(const HashKey& key, const PrefixScope& scope) {
  std::string bytes;
  AppendNumber(kRootDomain, &bytes);
  AppendField(scope.tenant, &bytes);
  AppendField(scope.fingerprint, &bytes);
  AppendField(scope.salt, &bytes);
  return KeyedHash(key, std::as_bytes(std::span<const char>(bytes)));
}

PageKey HashPage(const HashKey& key, const Hash128& parent, std::span<const std::int32_t> tokens) {
  const std::array<std::uint64_t, 3> head = {kPageDomain, parent.lo, parent.hi};
  return KeyedHash(key, std::as_bytes(std::span(head)), std::as_bytes(tokens));
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
