#pragma once

// Text forms of messages and enumerators, for the output of commands.
//
// Threads: any.

#include <string>

#include "absl/status/statusor.h"

namespace google::protobuf {
class EnumDescriptor;
class Message;
}  // namespace google::protobuf

namespace quire::client {

// Returns the message as one line of JSON. It differs from protobuf's JSON mapping in two ways.
// Fields that are zero, false or empty are present, except unset `optional` fields. 64-bit integers
// up to 2^53, which a double holds exactly, are numbers. Larger integers are strings. Returns
// INVALID_ARGUMENT if protobuf cannot print the message.
absl::StatusOr<std::string> MessageJson(const google::protobuf::Message& message);

// Returns the words of an enumerator without the name of its type: "stop text" for
// FINISH_REASON_STOP_TEXT. A number that `type` does not define, for example from a newer server,
// becomes "unknown (7)".
std::string EnumWords(const google::protobuf::EnumDescriptor* type, int value);

}  // namespace quire::client
