#include "models/blocks/layer_groups.h"

#include <algorithm>
#include <map>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/check.h"

namespace quire::models {
namespace {

// Unused slots are at most 1 / kPaddingShare of the layers.
constexpr std::uint32_t kPaddingShare = 8;

// A window that is at least as long as the context never releases pages, so it counts as none. The
// chunk of a token is within a window of the same length.
std::uint32_t WindowOf(const ModelSpec& spec, const LayerSpec& layer) {
  const std::uint32_t window = layer.heads.chunk != 0 ? layer.heads.chunk : layer.heads.window;
  return window < spec.max_position ? window : 0;
}

// Number of layers by window.
using Classes = std::map<std::uint32_t, std::uint32_t>;

std::uint32_t CountGroups(const Classes& classes, std::uint32_t slots) {
  std::uint32_t groups = 0;
  for (const auto& [window, layers] : classes) groups += (layers + slots - 1) / slots;
  return groups;
}

// Starts with the largest number of slots whose share of unused slots is allowed, which gives the
// fewest groups. Then removes slots while the number of groups does not grow.
std::uint32_t SlotsOf(const Classes& classes, std::uint32_t num_layers) {
  std::uint32_t slots = num_layers;
  std::uint32_t groups = CountGroups(classes, slots);
  while ((groups * slots - num_layers) * kPaddingShare > num_layers) {
    groups = CountGroups(classes, --slots);
  }
  while (slots > 1 && CountGroups(classes, slots - 1) == groups) --slots;
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
  const auto num_layers = static_cast<std::uint32_t>(
      std::ranges::count_if(spec.layers, [](const LayerSpec& layer) { return layer.has_kv(); }));
  QUIRE_CHECK(num_layers > 0);
  const bool has_windows = spec.first_kv_layer().attention == AttentionKind::kHeads;
  const auto window_of = [&](const LayerSpec& layer) {
    return has_windows ? WindowOf(spec, layer) : 0;
  };
  Classes classes;
  for (const LayerSpec& layer : spec.layers) {
    if (layer.has_kv()) ++classes[window_of(layer)];
  }
  LayerGroups plan;
  plan.slots = SlotsOf(classes, num_layers);
  std::map<std::uint32_t, std::uint32_t> last;  // last group of each window
  for (const LayerSpec& layer : spec.layers) {
    if (!layer.has_kv()) {
      plan.places.push_back({.state = plan.state_bytes});
      plan.state_bytes += StateBytesOf(spec, layer);
      continue;
    }
    const std::uint32_t window = window_of(layer);
    auto group = last.find(window);
    if (group == last.end() || plan.groups[group->second].num_layers == plan.slots) {
      const auto next = static_cast<std::uint32_t>(plan.groups.size());
      group = last.insert_or_assign(window, next).first;
      plan.groups.push_back({.window = window});
    }
    plan.places.push_back({group->second, plan.groups[group->second].num_layers++});
    if (layer.mla.has_indexer()) plan.places.back().index_slot = plan.index_slots++;
  }
  return plan;
}

std::vector<cache::CacheGroup> CacheGroupsOf(const LayerGroups& layers) {
  std::vector<cache::CacheGroup> groups;
  for (const LayerGroup& group : layers.groups) groups.push_back({.window = group.window});
  return groups;
}

std::string DescribeLayerGroups(const LayerGroups& layers) {
  struct Class {
    std::uint32_t layers = 0;
    std::uint32_t groups = 0;
  };
  std::map<std::uint32_t, Class> classes;
  for (const LayerGroup& group : layers.groups) {
    classes[group.window].layers += group.num_layers;
    ++classes[group.window].groups;
  }
  std::vector<std::string> parts;
  for (const auto& [window, counts] : classes) {
    parts.push_back(absl::StrCat(
        counts.layers, " for ",
        window == 0 ? std::string("all tokens") : absl::StrCat("a window of ", window, " tokens"),
        counts.groups == 1 ? std::string() : absl::StrCat(" in ", counts.groups, " groups")));
  }
  return absl::StrCat(
      layers.slots, layers.slots == 1 ? " layer" : " layers",
      " a page: ", absl::StrJoin(parts, ", "),
      layers.state_bytes == 0 ? std::string()
                              : absl::StrCat("; states of ", layers.state_bytes, " bytes"),
      layers.index_slots == 0 ? std::string()
                              : absl::StrCat("; index rows of ", layers.index_slots));
}

}  // namespace quire::models
