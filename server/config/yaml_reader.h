#pragma once

// YAML and single overrides against the configuration schema. The walk goes over the yaml-cpp tree
// and the descriptors side by side, so that every message has a place: `file:line:column: text`.
//
// Place:      between the layers of layered_config.h and scalar_value.h.
// Invariants: a value that is refused leaves its field as it was; reading goes on, so one run
//             reports every error.
// Threads:    any, on different messages.
// Lifetime:   none.

#include <map>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace google::protobuf {
class Message;
}

namespace quire::server {

// Where a value comes from.
struct Origin {
  std::string layer;  // file name, "env NAME", "--set" or "default"
  int line = 0;       // from 1; 0 when the layer has no lines
  int column = 0;

  // "prod.yaml:12:3", "env NAME", "--set", "default".
  std::string ToString() const;
};

// Dotted path of a key -> origin of its value.
using Origins = std::map<std::string, Origin>;

// Sets every field of `config` to its built-in default.
void ApplyDefaults(google::protobuf::Message* config, Origins* origins,
                   std::vector<std::string>* errors);

// Lays one YAML document over `config`.
void ReadYaml(absl::string_view text, absl::string_view file_name,
              google::protobuf::Message* config, Origins* origins,
              std::vector<std::string>* errors);

// Lays one `path = value` over `config`. `value` is a YAML scalar or flow list; for a list of texts
// a scalar is a list of one. `origin.layer` is "env NAME" or "--set".
void ReadOverride(absl::string_view path, absl::string_view value, const Origin& origin,
                  google::protobuf::Message* config, Origins* origins,
                  std::vector<std::string>* errors);

// All dotted paths of the schema, in its order.
std::vector<std::string> AllPaths(const google::protobuf::Message& config);

}  // namespace quire::server
