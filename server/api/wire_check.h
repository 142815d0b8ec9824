#pragma once

// Why a request message did not parse. Protobuf says only that it did not; a client with text that
// is not UTF-8 deserves the field and the offset.
//
// Place:      used by handlers that take their requests as bytes.
// Threads:    any.

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace google::protobuf {
class Descriptor;
}

namespace quire::server {

// INVALID_ARGUMENT / BAD_UTF8 with field path and byte offset when a text field of `type` holds
// bytes that are not UTF-8; else INVALID_ARGUMENT / BAD_PARAMETER. REQUIRES: parsing `bytes` as
// `type` failed.
absl::Status ExplainParseFailure(const google::protobuf::Descriptor* type,
                                 const std::string& bytes);

}  // namespace quire::server
