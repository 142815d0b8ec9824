#pragma once

// The parts of a GGUF file's configuration that only some families have: experts, recurrent layers,
// latent attention, layers that differ. Where the tensors of a layer show what it computes, they
// decide, since writers state the kinds of layers in several ways.

#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "models/config/family.h"
#include "models/config/model_config.h"
#include "models/families/gguf_keys.h"

namespace quire::models {

// The inputs of these functions.
struct GgufSource {
  const GgufKeys& keys;
  const Family& family;
  std::uint32_t num_blocks = 0;  // layers and the blocks for multi-token prediction behind them

  // True if the key is among Family::gguf_keys.
  bool Reads(absl::string_view key) const;
  // True if layer `layer` has the tensor NAME.weight.
  bool HasMatrix(std::size_t layer, absl::string_view name) const;
};

// Each function fills its part of `config`, whose sizes are known already, if the family reads such
// keys. Errors name the key.
absl::Status ReadGgufExperts(const GgufSource& source, ModelConfig* config);
absl::Status ReadGgufStates(const GgufSource& source, ModelConfig* config);
absl::Status ReadGgufMla(const GgufSource& source, ModelConfig* config);
absl::Status ReadGgufIndex(const GgufSource& source, ModelConfig* config);
absl::Status ReadGgufChunks(const GgufSource& source, ModelConfig* config);
// Reads head sizes of layers with and without a window, shared keys and inputs per layer.
// REQUIRES: config->windows are read.
absl::Status ReadGgufPerLayer(const GgufSource& source, ModelConfig* config);

}  // namespace quire::models
