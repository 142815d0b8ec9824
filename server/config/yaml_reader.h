#pragma once

// Reads YAML documents and single overrides into the configuration. Every error message begins with
// a location (`file:line:column` for a file).
//
// Place:      called by layered_config.h for each layer; uses scalar_value.h.
// Invariants: an invalid value leaves its field unchanged. A list of Protobuf messages, however,
//             is replaced by the valid elements of the new list. Reading continues after an error,
//             so that one run reports all errors.
// Threads:    any, on different messages.

#include <map>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace google::protobuf {
class Message;
}

namespace quire::server {

// Origin of a value.
struct Origin {
  // File name, "env NAME", "--set", "MODEL" for the argument of quired, "default", or
  // "--port-offset" for a default address that this flag has shifted.
  std::string layer;
  int line = 0;  // 1-based; 0 if the layer is not a file
  int column = 0;

  // Returns "prod.yaml:12:3" for a file, otherwise the layer.
  std::string ToString() const;
  // True for a built-in default, not for a value of a file named "default".
  bool is_default() const { return layer == "default" && line == 0; }
};

// Origin of each value, by the dotted path of its key.
using Origins = std::map<std::string, Origin>;
// Returns the origin of the key as text, or "default" if `origins` does not have it.
std::string OriginOf(const Origins& origins, const std::string& path);

// Sets every field of `config` to its built-in default.
void ApplyDefaults(google::protobuf::Message* config, Origins* origins,
                   std::vector<std::string>* errors);

// Applies one YAML document on top of `config`. Returns false if the text is neither empty nor one
// YAML document with a map at its top. If it returns false, some or all keys have not been read.
bool ReadYaml(absl::string_view text, absl::string_view file_name,
              google::protobuf::Message* config, Origins* origins,
              std::vector<std::string>* errors);

// Applies one `path = value` on top of `config`. `value` is a YAML scalar or a flow list. For a
// list key, a scalar means a list of one element. `origin.layer` is "env NAME", "--set" or "MODEL".
void ReadOverride(absl::string_view path, absl::string_view value, const Origin& origin,
                  google::protobuf::Message* config, Origins* origins,
                  std::vector<std::string>* errors);

// Returns all dotted paths of the schema, in its order.
std::vector<std::string> AllPaths(const google::protobuf::Message& config);

}  // namespace quire::server
