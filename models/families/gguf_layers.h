#pragma once

// Reads the parts of a GGUF file's configuration that only some families have: experts, recurrent
// layers, MLA, per-layer settings. The kind of a layer is derived from its tensors if possible,
// because writers encode it in different keys.

#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "models/config/family.h"
#include "models/config/model_config.h"
#include "models/families/gguf_keys.h"

namespace quire::models {

// The inputs of the functions below.
struct GgufSource {
  const GgufKeys& keys;
  const Family& family;
  std::uint32_t num_blocks = 0;  // layers, then the blocks for multi-token prediction

  // True if the key is among Family::gguf_keys.
  bool Reads(absl::string_view key) const;
  // True if layer `layer` has the tensor NAME.weight.
  bool HasMatrix(std::size_t layer, absl::string_view name) const;
};

// Each function fills its part of `config` if the family reads such keys. Errors name the key.
// REQUIRES: the general sizes in `config` are set.
absl::Status ReadGgufExperts(const GgufSource& source, ModelConfig* config);
absl::Status ReadGgufStates(const GgufSource& source, ModelConfig* config);
absl::Status ReadGgufMla(const GgufSource& source, ModelConfig* config);
absl::Status ReadGgufIndex(const GgufSource& source, ModelConfig* config);
absl::Status ReadGgufChunks(const GgufSource& source, ModelConfig* config);
// Reads the head sizes of layers with and without a window, KV sharing and per-layer embeddings.
// REQUIRES: config->windows are read.
absl::Status ReadGgufPerLayer(const GgufSource& source, ModelConfig* config);

}  // namespace quire::models
