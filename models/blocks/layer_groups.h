#pragma once

// Which layers share the lookup table and the lifetime of their pages. Every page of a model has
// the same number of layer slots, whatever group it serves, so all groups take theirs from one
// pool; what a group has for itself are its lookup table and its window.
//
//   layers          w w f w w f       w: windowed, f: full; 2 slots a page
//   group, slot     0,0 0,1 1,0 2,0 2,1 1,1
//
// Layers of equal window are filled into groups in their order. There are as few groups as possible
// with at most one unused slot for eight of the model's layers, and no more slots than they need.
//
// Place:      between ModelSpec and the KV geometry, the cache manager's groups and the decoder.
// Invariants: every layer has a place of its own; a group's layers have one window. A model of one
//             class has one group, and so has latent attention, which has no windows.
// Threads:    any; plain values.

#include <cstdint>
#include <string>
#include <vector>

#include "cache_manager/cache_manager.h"
#include "models/config/layer_spec.h"

namespace quire::models {

// Where a layer keeps its K and V.
struct LayerPlace {
  std::uint32_t group = 0;
  std::uint32_t slot = 0;  // below LayerGroups::slots
  friend bool operator==(const LayerPlace&, const LayerPlace&) = default;
};

struct LayerGroup {
  std::uint32_t window = 0;      // tokens that a query reads, its own included; 0: all
  std::uint32_t num_layers = 0;  // at most LayerGroups::slots
  friend bool operator==(const LayerGroup&, const LayerGroup&) = default;
};

struct LayerGroups {
  std::uint32_t slots = 0;         // layers that a page has room for
  std::vector<LayerGroup> groups;  // in order of their first layers
  std::vector<LayerPlace> places;  // by layer
  friend bool operator==(const LayerGroups&, const LayerGroups&) = default;
};

// REQUIRES: the spec has layers.
LayerGroups PlanLayerGroups(const ModelSpec& spec);

// What the cache manager is told of them.
std::vector<cache::CacheGroup> CacheGroupsOf(const LayerGroups& layers);

// For people, such as "6 layers a page: 5 for all tokens, 29 for a window of 1024 tokens in 5
// groups".
std::string DescribeLayerGroups(const LayerGroups& layers);

}  // namespace quire::models
