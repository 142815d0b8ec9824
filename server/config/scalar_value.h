#pragma once

// One value of the configuration between its YAML spelling and a Protobuf field, under the field's
// rule (proto/quire/config/v1/options.proto).
//
// Place:      below the YAML reader; the only code that knows how numbers, sizes, times and names
//             are spelled.
// Invariants: printing a value and reading it again gives the same value.
// Threads:    any.
// Lifetime:   none.

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

// The rule of `field`. REQUIRES: the field is not a section.
const config::v1::FieldRule& RuleOf(const google::protobuf::FieldDescriptor* field);

// Whether `field` is a group of further keys and not a value.
bool IsSection(const google::protobuf::FieldDescriptor* field);

// Whether `field` is a list of groups of keys.
bool IsEntryList(const google::protobuf::FieldDescriptor* field);

// Names of an enum field as YAML writes them, without the unspecified one.
std::vector<std::string> EnumNames(const google::protobuf::FieldDescriptor* field);

// Sets (or, for a list, appends) the value that `text` spells; `quoted` says whether YAML had it in
// quotes. The error is the text after "path: ", such as `48 is not one of 16, 32, 64, 128`.
absl::Status SetScalar(google::protobuf::Message* message,
                       const google::protobuf::FieldDescriptor* field, absl::string_view text,
                       bool quoted);

// A number of bytes, as keys of bytes are written: an integer, or one with KiB, MiB, GiB or TiB.
absl::StatusOr<std::int64_t> ParseBytes(absl::string_view text);

enum class Spelling { kYaml, kJson };

// The value of a field, element `index` of a list (-1: not a list). An absent optional gives its
// word.
std::string PrintScalar(const google::protobuf::Message& message,
                        const google::protobuf::FieldDescriptor* field, int index,
                        Spelling spelling);

}  // namespace quire::server
