#pragma once

// Layer groups: layers that share a lookup table and the lifetime of their pages. All pages of a
// model have the same number of layer slots, so all groups allocate from one pool. Each group has
// its own lookup table and window.
//
//   layers          w w f w w f       w: windowed, f: full; 2 slots per page
//   group, slot     0,0 0,1 1,0 2,0 2,1 1,1
//
// Layers with equal windows are assigned to groups in their order. The plan has the fewest groups
// that leave at most one unused slot per eight layers, and for that number the fewest slots.
//
// Recurrent layers have no pages. Their states lie in state slots, one layer after the other: S of
// all heads, then the inputs of the convolution. Each layer starts at a multiple of 256 bytes.
//
// Place:      between ModelSpec and the KV geometry, the cache manager's groups and the decoder.
// Invariants: every layer has its own place; all layers of a group have the same window. A model
//             whose layers have equal windows has one group, and so has MLA, which has no windows.
// Threads:    any; plain values.

#include <cstdint>
#include <string>
#include <vector>

#include "cache_manager/cache_manager.h"
#include "models/config/layer_spec.h"

namespace quire::models {

// The place of a layer's K and V, or of the states of a recurrent layer.
struct LayerPlace {
  std::uint32_t group = 0;
  std::uint32_t slot = 0;  // below LayerGroups::slots
  std::int64_t state = 0;  // bytes from the start of a state slot
  // Place of the layer's index rows, below LayerGroups::index_slots; 0 without an indexer.
  std::uint32_t index_slot = 0;
  friend bool operator==(const LayerPlace&, const LayerPlace&) = default;
};

struct LayerGroup {
  std::uint32_t window = 0;      // tokens that a query reads, including itself; 0: all
  std::uint32_t num_layers = 0;  // at most LayerGroups::slots
  friend bool operator==(const LayerGroup&, const LayerGroup&) = default;
};

struct LayerGroups {
  std::uint32_t slots = 0;         // layers per page
  std::uint32_t index_slots = 0;   // layers with an indexer
  std::vector<LayerGroup> groups;  // in order of their first layers
  std::vector<LayerPlace> places;  // by layer
  std::int64_t state_bytes = 0;    // bytes of a state slot; 0: the model has no recurrent layers
  friend bool operator==(const LayerGroups&, const LayerGroups&) = default;
};

// REQUIRES: the spec has a layer with K and V.
LayerGroups PlanLayerGroups(const ModelSpec& spec);

// Returns the groups as the cache manager's configuration.
std::vector<cache::CacheGroup> CacheGroupsOf(const LayerGroups& layers);

// Returns a description for logs, such as "6 layers a page: 5 for all tokens, 29 for a window of
// 1024 tokens in 5 groups", and the bytes of a sequence's states if there are any.
std::string DescribeLayerGroups(const LayerGroups& layers);

}  // namespace quire::models
