#pragma once

// Finds out why a request message did not parse. Protobuf does not report the cause. For a string
// that is not UTF-8, the error names the field and the byte offset.
//
// Place:      used by handlers that receive requests as bytes.
// Threads:    any.

#include <string>

#include "absl/status/status.h"

namespace google::protobuf {
class Descriptor;
}

namespace quire::server {

// Returns INVALID_ARGUMENT / BAD_UTF8 with field path and byte offset if a text field of `type` is
// not UTF-8; otherwise INVALID_ARGUMENT / BAD_PARAMETER. REQUIRES: parsing `bytes` as `type`
// failed.
absl::Status ExplainParseFailure(const google::protobuf::Descriptor* type,
                                 const std::string& bytes);

}  // namespace quire::server
