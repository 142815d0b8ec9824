#pragma once

// Converts one configuration value between its YAML spelling and a Protobuf field, and checks the
// field's rule (proto/quire/config/v1/options.proto).
//
// Place:      below the YAML reader. No other code parses or prints numbers, sizes, durations and
//             enum names.
// Invariants: printing a value and parsing the text returns the same value.
// Threads:    any.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace google::protobuf {
class FieldDescriptor;
class Message;
}  // namespace google::protobuf
namespace quire::config::v1 {
class FieldRule;
}

namespace quire::server {

// Returns the rule of `field`. REQUIRES: the field is not a section.
const config::v1::FieldRule& RuleOf(const google::protobuf::FieldDescriptor* field);

// Returns true if `field` is a section, which has keys instead of a value.
bool IsSection(const google::protobuf::FieldDescriptor* field);

// Returns true if `field` is a list of groups of keys.
bool IsEntryList(const google::protobuf::FieldDescriptor* field);

// Returns the YAML names of an enum field, without the unspecified value.
std::vector<std::string> EnumNames(const google::protobuf::FieldDescriptor* field);

// Parses `text` and sets the field; if the field is a list, appends to it. `quoted` is true if the
// YAML scalar was quoted. Error messages have no path, for example `48 is not one of 16, 32, 64,
// 128`; the caller prepends "path: ".
absl::Status SetScalar(google::protobuf::Message* message,
                       const google::protobuf::FieldDescriptor* field, absl::string_view text,
                       bool quoted);

// Parses a number of bytes: an integer, optionally with KiB, MiB, GiB or TiB.
absl::StatusOr<std::int64_t> ParseBytes(absl::string_view text);

enum class Spelling { kYaml, kJson };

// Prints the value of a field, or element `index` of a list (-1: not a list). An unset optional
// field prints as its absent_word.
std::string PrintScalar(const google::protobuf::Message& message,
                        const google::protobuf::FieldDescriptor* field, int index,
                        Spelling spelling);

}  // namespace quire::server
