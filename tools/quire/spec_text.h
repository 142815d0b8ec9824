#pragma once

// Describes the computation of a model in words, for `quire inspect` and `quire plan`.
// models::DumpSpec prints every number.
//
// Threads: any; pure functions.

#include <string>
#include <vector>

#include "models/blocks/layer_groups.h"
#include "models/config/layer_spec.h"

namespace quire::client {

// One line of a table.
struct SpecLine {
  std::string name;  // "model", "layers 0-3"
  std::string text;
};

// Returns a line for the model and one per run of equal layers. Options at their defaults are
// omitted.
std::vector<SpecLine> DescribeSpec(const models::ModelSpec& spec);

// Returns how the layers share pages, such as "a page holds 6 layers; 5 layers keep all tokens, 29
// layers keep the last 1024 tokens".
std::string DescribePages(const models::LayerGroups& layers);

}  // namespace quire::client
