#pragma once

// Layer groups: layers that share a lookup table and the lifetime of their pages. All pages of a
// model have the same number of layer slots, so all groups allocate from one pool. Each group has
// its own lookup table and window.
//
//   layers          w w f w w f       w: windowed, f: full; 2 slots per page
//   group, slot     0,0 0,1 1,0 2,0 2,1 1,1
//
// Layers with equal windows and KV rows are assigned to groups in the order of the layers. The plan
// has the fewest groups that leave at most one unused slot per eight used ones. Among plans with
// that number of groups it has the fewest slots.
//
// If the KV rows of layers differ in size, the size of a slot is the greatest common divisor of the
// sizes, and a layer occupies several adjacent slots. A page has room for a whole number of layers
// of each kind. LayerPlace::slot is the index of a layer in its group, not of a slot in a page. A
// layer with kv_from_layer has the place of the layer that it reads, and occupies no slot.
//
// Recurrent layers have no pages. A state slot stores the states that a sequence has in all
// recurrent layers, one layer after the other: the state matrices of all heads, then the inputs of
// the convolution. Each layer starts at a multiple of 256 bytes.
//
// Place:      derived from ModelSpec; determines the KV geometry, the cache manager's groups and
//             the places that the decoder uses.
// Invariants: every layer that stores K and V has its own place; all layers of a group have the
//             same window and the same KV rows. A model whose layers have equal windows and rows
//             has one group. An MLA model is such a model.
// Threads:    any; plain values.

#include <compare>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "cache_manager/cache_manager.h"
#include "cache_manager/views/kv_params.h"
#include "models/config/layer_spec.h"

namespace quire::models {

// The place of a layer's K and V, or of the states of a recurrent layer.
struct LayerPlace {
  std::uint32_t group = 0;
  std::uint32_t slot = 0;  // index among the layers of the group, below LayerGroup::num_layers
  std::int64_t state = 0;  // bytes from the start of a state slot
  // Index of the slot for the layer's indexer rows, less than LayerGroups::index_slots; 0 without
  // an indexer.
  std::uint32_t index_slot = 0;
  friend bool operator==(const LayerPlace&, const LayerPlace&) = default;
};

// The K or V of one token in one layer. An MLA cache row has one head.
struct KvRow {
  std::uint32_t num_heads = 0;
  std::uint32_t head_size = 0;
  std::uint64_t elements() const { return std::uint64_t{num_heads} * head_size; }
  friend auto operator<=>(const KvRow&, const KvRow&) = default;
};

struct LayerGroup {
  std::uint32_t window = 0;           // tokens that a query reads, including itself; 0: all
  std::uint32_t num_layers = 0;       // layers that store K and V
  std::uint32_t slots_per_layer = 1;  // above 1 only if the KV rows of layers differ
  KvRow row;
  friend bool operator==(const LayerGroup&, const LayerGroup&) = default;
};

struct LayerGroups {
  std::uint32_t slots = 0;         // per page; a multiple of every slots_per_layer
  std::uint32_t index_slots = 0;   // layers with an indexer
  KvRow slot_row;                  // K or V of one token in one slot
  std::vector<LayerGroup> groups;  // in order of their first layers
  std::vector<LayerPlace> places;  // by layer
  std::int64_t state_bytes = 0;    // bytes of a state slot; 0: the model has no recurrent layers
  friend bool operator==(const LayerGroups&, const LayerGroups&) = default;
};

// Returns the plan of the model. REQUIRES: at least one layer stores K and V, and each
// kv_from_layer names an earlier layer that stores K and V.
LayerGroups PlanLayerGroups(const ModelSpec& spec);

// True if all layers have equal KV rows.
bool HasEqualRows(const LayerGroups& layers);

// Returns the geometry of a group's pages in terms of its layers. The geometry of the pool
// (KvGeometryFor) describes the same pages in terms of slots, with the same number of bytes.
cache::KvGeometry GroupGeometry(const cache::KvGeometry& pool, const LayerGroups& layers,
                                std::size_t group);

// Returns the groups as the cache manager's configuration.
std::vector<cache::CacheGroup> CacheGroupsOf(const LayerGroups& layers);

// Returns a description for logs, such as "6 layers per page; 5 without a window, 29 with a window
// of 1024 tokens in 5 groups", and the bytes of a sequence's states if there are any.
std::string DescribeLayerGroups(const LayerGroups& layers);

}  // namespace quire::models
