#pragma once

// Hash tables that an insertion without memory leaves as they were. Those of Abseil (20220623) note
// their new size before they have its memory: whatever is done with them next, and be it to destroy
// them, ends the process.
//
// Place:   where something is inserted inside WithinMemory, or on a thread that outlives the want
//          of memory; what is filled once, at the start, may be Abseil's.
// Threads: as the tables of the standard library, which they are.

#include <cstddef>
#include <functional>
#include <string>
#include <type_traits>
#include <unordered_map>
#include <unordered_set>

#include "absl/hash/hash.h"
#include "absl/strings/string_view.h"

namespace quire {

// Of texts, however they are stored.
struct TextHash {
  using is_transparent = void;
  std::size_t operator()(absl::string_view text) const {
    return absl::Hash<absl::string_view>()(text);
  }
};

template <typename Key>
using KeyHash = std::conditional_t<std::is_same_v<Key, std::string>, TextHash, absl::Hash<Key>>;

template <typename Key, typename Value>
using HashMap = std::unordered_map<Key, Value, KeyHash<Key>, std::equal_to<>>;
template <typename Key>
using HashSet = std::unordered_set<Key, KeyHash<Key>, std::equal_to<>>;

}  // namespace quire
