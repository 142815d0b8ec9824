#pragma once

// The 128-bit keyed hash that identifies a page by everything that decides its bytes.
//
//   root = H(tenant, fingerprint, salt)
//   k(0) = H(root, tokens[0, P))
//   k(i) = H(k(i-1), tokens[i*P, (i+1)*P))
//
// A key finds a candidate page. A hit also requires equal tokens (prefix_cache.h).

#include <cstdint>
#include <span>
#include <vector>

#include "absl/strings/string_view.h"
#include "base/keyed_hash.h"

namespace quire::cache {

using PageKey = Hash128;

// Requests with equal scopes may share pages. The tenant comes from the authenticated identity,
// never from a request field. The salt can only narrow sharing.
struct PrefixScope {
  absl::string_view tenant;
  // The fingerprint of the model. On the CPU it also covers the element type of activations.
  absl::string_view fingerprint;
  absl::string_view salt;
};

Hash128 HashRoot(const HashKey& key, const PrefixScope& scope);

// Returns the key of the full page that follows `parent`, which is the root for the first page.
PageKey HashPage(const HashKey& key, const Hash128& parent, std::span<const std::int32_t> tokens);

// The type of HashPage. Tests substitute a weak hash to force collisions.
using PageHashFunction = PageKey (*)(const HashKey& key, const Hash128& parent,
                                     std::span<const std::int32_t> tokens);

// Returns the keys of all full pages of `tokens`. A partial last page has no key.
std::vector<PageKey> HashPages(const HashKey& key, const Hash128& root,
                               std::span<const std::int32_t> tokens, std::uint32_t page_size);

}  // namespace quire::cache
