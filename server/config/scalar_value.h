#pragma once

// Converts one configuration value between its YAML or JSON spelling and a Protobuf field, and
// checks the rule of the field (FieldRule in proto/quire/config/v1/options.proto).
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
class EnumValueDescriptor;
class FieldDescriptor;
class Message;
}  // namespace google::protobuf
namespace quire::config::v1 {
class FieldRule;
}

namespace quire::server {

// Returns the rule of `field`. REQUIRES: the field is not a section.
const config::v1::FieldRule& RuleOf(const google::protobuf::FieldDescriptor* field);

// Returns true if `field` is a section of the configuration, that is, a message with keys of its
// own.
bool IsSection(const google::protobuf::FieldDescriptor* field);

// Returns true if `field` is a list whose entries are messages, such as tenants.entries.
bool IsEntryList(const google::protobuf::FieldDescriptor* field);

// Returns the YAML name of an enum value, such as "cpu" for DEVICE_TYPE_CPU.
std::string EnumName(const google::protobuf::EnumValueDescriptor* value);
// Returns the YAML names of the values of an enum field, except the value 0 (..._UNSPECIFIED).
std::vector<std::string> EnumNames(const google::protobuf::FieldDescriptor* field);

// Parses `text` and sets the field, or appends to it if the field is a list. `quoted` is true if
// the YAML scalar was quoted. Error messages do not name the key, for example `48 is not one of 16,
// 32, 64, 128`. The caller prepends "path: ".
absl::Status SetScalar(google::protobuf::Message* message,
                       const google::protobuf::FieldDescriptor* field, absl::string_view text,
                       bool quoted);

// Parses a number of bytes, which is an integer with or without KiB, MiB, GiB or TiB.
absl::StatusOr<std::int64_t> ParseBytes(absl::string_view text);

enum class Spelling { kYaml, kJson };

// Prints the value of a field, or the element `index` if the field is a list (-1: no list). An
// unset optional field is printed as the absent_word of its rule.
std::string PrintScalar(const google::protobuf::Message& message,
                        const google::protobuf::FieldDescriptor* field, int index,
                        Spelling spelling);

}  // namespace quire::server
