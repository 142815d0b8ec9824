#include "models/blocks/layer_groups.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/check.h"

namespace quire::models {
namespace {

// Unused slots of all groups are at most 1 / kPaddingShare of the slots that layers use.
constexpr std::uint32_t kPaddingShare = 8;

// Returns the window of a layer, 0 for none. A window that is at least as long as the context never
// releases pages, so it counts as none. A chunk counts as a window of the same length.
std::uint32_t WindowOf(const ModelSpec& spec, const LayerSpec& layer) {
  const std::uint32_t window = layer.heads.chunk != 0 ? layer.heads.chunk : layer.heads.window;
  return window < spec.max_position ? window : 0;
}

KvRow RowOf(const LayerSpec& layer) {
  if (layer.attention == AttentionKind::kMla)
    return {1, layer.mla.kv_lora_rank + layer.mla.rope_size};
  return {layer.heads.num_kv_heads, layer.heads.head_size};
}

// Layers that can share a group.
struct Class {
  std::uint32_t window = 0;
  KvRow row;
  friend auto operator<=>(const Class&, const Class&) = default;
};
struct ClassSize {
  std::uint32_t num_layers = 0;
  std::uint32_t slots_per_layer = 1;
};
using Classes = std::map<Class, ClassSize>;

// Returns the row of a slot. Its heads have the smallest head size, so that a page with scales has
// room for the scales of every kind of layer.
KvRow SlotRow(const Classes& classes) {
  const KvRow first = classes.begin()->first.row;
  if (std::all_of(classes.begin(), classes.end(),
                  [&](const auto& entry) { return entry.first.row == first; })) {
    return first;
  }
  std::uint64_t elements = 0;
  std::uint32_t head_size = first.head_size;
  for (const auto& [kind, size] : classes) {
    elements = std::gcd(elements, kind.row.elements());
    head_size = std::min(head_size, kind.row.head_size);
  }
  return {static_cast<std::uint32_t>(elements / head_size), head_size};
}

std::uint32_t CountGroups(const Classes& classes, std::uint32_t slots) {
  std::uint32_t groups = 0;
  for (const auto& [kind, size] : classes) {
    const std::uint32_t room = slots / size.slots_per_layer;
    groups += (size.num_layers + room - 1) / room;
  }
  return groups;
}

// Returns the number of slots of a page. Starts with the largest number whose share of unused slots
// is allowed, because it gives the fewest groups. Then lowers it as long as the number of groups
// does not grow. The number stays a multiple of every slots_per_layer.
std::uint32_t SlotsOf(const Classes& classes) {
  std::uint32_t used = 0, step = 1;
  for (const auto& [kind, size] : classes) {
    used += size.num_layers * size.slots_per_layer;
    step = std::lcm(step, size.slots_per_layer);
  }
  std::uint32_t slots = (used + step - 1) / step * step;
  std::uint32_t groups = CountGroups(classes, slots);
  while (slots > step && (groups * slots - used) * kPaddingShare > used) {
    groups = CountGroups(classes, slots -= step);
  }
  while (slots > step && CountGroups(classes, slots - step) == groups) slots -= step;
  return slots;
}

// Returns the bytes of a layer's states in a slot.
std::int64_t StateBytesOf(const ModelSpec& spec, const LayerSpec& layer) {
  constexpr std::int64_t kAlignment = 256;
  if (!layer.has_state()) return 0;
  const std::int64_t floats = layer.attention == AttentionKind::kShortConv
                                  ? std::int64_t{layer.short_conv.width - 1} * spec.hidden
                                  : layer.recurrent.state_floats() + layer.recurrent.conv_floats();
  const std::int64_t bytes = floats * std::int64_t{sizeof(float)};
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

}  // namespace

LayerGroups PlanLayerGroups(const ModelSpec& spec) {
  const auto class_of = [&](const LayerSpec& layer) {
    const bool has_window = layer.attention == AttentionKind::kHeads;
    return Class{has_window ? WindowOf(spec, layer) : 0, RowOf(layer)};
  };
  Classes classes;
  for (const LayerSpec& layer : spec.layers) {
    if (layer.stores_kv()) ++classes[class_of(layer)].num_layers;
  }
  QUIRE_CHECK(!classes.empty());
  LayerGroups plan;
  plan.slot_row = SlotRow(classes);
  for (auto& [kind, size] : classes) {
    if (kind.row == plan.slot_row) continue;
    size.slots_per_layer =
        static_cast<std::uint32_t>(kind.row.elements() / plan.slot_row.elements());
  }
  plan.slots = SlotsOf(classes);
  std::map<Class, std::uint32_t> last;  // last group of each class
  for (const LayerSpec& layer : spec.layers) {
    if (!layer.has_kv()) {
      plan.places.push_back({.state = plan.state_bytes});
      plan.state_bytes += StateBytesOf(spec, layer);
      continue;
    }
    if (!layer.stores_kv()) {
      plan.places.push_back(plan.places[static_cast<std::size_t>(layer.kv_from_layer)]);
      continue;
    }
    const Class kind = class_of(layer);
    const std::uint32_t width = classes[kind].slots_per_layer;
    auto group = last.find(kind);
    if (group == last.end() || plan.groups[group->second].num_layers == plan.slots / width) {
      const auto next = static_cast<std::uint32_t>(plan.groups.size());
      group = last.insert_or_assign(kind, next).first;
      plan.groups.push_back({.window = kind.window, .slots_per_layer = width, .row = kind.row});
    }
    plan.places.push_back({group->second, plan.groups[group->second].num_layers++});
    if (layer.mla.has_indexer()) plan.places.back().index_slot = plan.index_slots++;
  }
  return plan;
}

bool HasEqualRows(const LayerGroups& layers) {
  return std::all_of(layers.groups.begin(), layers.groups.end(),
                     [&](const LayerGroup& group) { return group.row == layers.slot_row; });
}

cache::KvGeometry GroupGeometry(const cache::KvGeometry& pool, const LayerGroups& layers,
                                std::size_t group) {
  cache::KvGeometry geometry = pool;
  const LayerGroup& own = layers.groups[group];
  if (own.row == layers.slot_row) return geometry;
  geometry.num_layers = pool.num_layers / own.slots_per_layer;
  geometry.num_heads = own.row.num_heads;
  geometry.head_size = own.row.head_size;
  if (!geometry.quantized()) return geometry;
  geometry.granularity = own.row.head_size;
  geometry.scale_page_stride = pool.scale_block_stride();
  return geometry;
}

std::vector<cache::CacheGroup> CacheGroupsOf(const LayerGroups& layers) {
  std::vector<cache::CacheGroup> groups;
  for (const LayerGroup& group : layers.groups) groups.push_back({.window = group.window});
  return groups;
}

std::string DescribeLayerGroups(const LayerGroups& layers) {
  const bool has_equal_rows = HasEqualRows(layers);
  std::map<std::pair<std::uint32_t, std::uint32_t>, std::pair<std::uint32_t, std::uint32_t>> kinds;
  for (const LayerGroup& group : layers.groups) {
    auto& [num_layers, num_groups] = kinds[{group.window, group.slots_per_layer}];
    num_layers += group.num_layers;
    ++num_groups;
  }
  std::vector<std::string> parts;
  for (const auto& [kind, counts] : kinds) {
    const auto& [window, width] = kind;
    parts.push_back(absl::StrCat(
        counts.first,
        has_equal_rows ? std::string()
                       : absl::StrCat(counts.first == 1 ? " layer of " : " layers of ", width,
                                      width == 1 ? " slot" : " slots"),
        window == 0 ? std::string(" without a window")
                    : absl::StrCat(" with a window of ", window, " tokens"),
        counts.second == 1 ? std::string() : absl::StrCat(" in ", counts.second, " groups")));
  }
  return absl::StrCat(
      layers.slots, has_equal_rows ? " layer" : " slot", layers.slots == 1 ? "" : "s",
      " per page; ", absl::StrJoin(parts, ", "),
      layers.state_bytes == 0 ? std::string()
                              : absl::StrCat("; states of ", layers.state_bytes, " bytes"),
      layers.index_slots == 0 ? std::string()
                              : absl::StrCat("; index rows of ", layers.index_slots,
                                             layers.index_slots == 1 ? " layer" : " layers"));
}

}  // namespace quire::models
