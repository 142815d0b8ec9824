#pragma once

#include <cstdint>
#include <vector>

#include "base/keyed_hash.h"
#include "cache_manager/pool/page_demand.h"
#include "cache_manager/prefix/page_hash.h"
#include "cache_manager/views/kv_params.h"

namespace quire::cache {

struct CacheManagerOptions {
  KvGeometry geometry;  // the same for the pages of all groups; num_blocks includes the null page
  std::vector<CacheGroup> groups = {CacheGroup{}};
  std::uint32_t max_rows = 0;            // rows of a lookup table
  std::uint32_t max_context_tokens = 0;  // maximum tokens of a row, including planned steps
  // Maximum number of tokens of a row that are planned or in flight at a time. Only demand()
  // depends on it. At least 1 if any group has a window.
  std::uint32_t max_row_overlap_tokens = 0;
  // Number of state slots of a model with recurrent layers, including the null slot; 0 if the model
  // has no recurrent layers.
  std::uint32_t num_state_slots = 0;
  // Number of prompt tokens between two snapshots of the recurrent states, a multiple of the page
  // size. If 0, snapshots are taken only near the end of a prompt and where it diverges from
  // published pages.
  std::uint32_t state_interval_tokens = 0;
  bool prefix_caching = true;
  bool partial_page_reuse = true;          // initial value, see SetPartialPageReuse
  HashKey hash_key{};                      // random per process
  PageHashFunction page_hash = &HashPage;  // must be the function that computes the callers' keys
};

}  // namespace quire::cache
