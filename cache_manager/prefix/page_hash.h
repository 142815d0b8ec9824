#pragma once

// Names of token histories: a 128-bit keyed hash of everything that decides the bytes of a page.
//
//   root = H(tenant, fingerprint, geometry, salt)      k(0) = H(root, tokens[0, P))
//                                                      k(i) = H(k(i-1), tokens[i*P, (i+1)*P))
//
// A key finds a candidate; a hit also compares the tokens themselves (prefix_cache.h).

#include <cstdint>
#include <span>
#include <vector>

#include "absl/strings/string_view.h"
#include "base/keyed_hash.h"

namespace quire::cache {

using PageKey = Hash128;

// What may share pages with what. The first part comes from the authenticated identity, never from
// a request field; the salt can only narrow sharing.
struct PrefixScope {
  absl::string_view tenant;
  absl::string_view fingerprint;  // weights, tokenizer, geometry, element type
  absl::string_view salt;
};

Hash128 HashRoot(const HashKey& key, const PrefixScope& scope);

// The key of one full page that follows `parent` (the root for the first page).
PageKey HashPage(const HashKey& key, const Hash128& parent, std::span<const std::int32_t> tokens);

// Tests put a weak hash in its place, to force collisions.
using PageHashFunction = PageKey (*)(const HashKey& key, const Hash128& parent,
                                     std::span<const std::int32_t> tokens);

// Keys of all full pages of `tokens`; a last page that is not full has none.
std::vector<PageKey> HashPages(const HashKey& key, const Hash128& root,
                               std::span<const std::int32_t> tokens, std::uint32_t page_size);

}  // namespace quire::cache
