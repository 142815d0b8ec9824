#pragma once

// HTTP/2 frames as tests send them (RFC 9113, section 4.1).

#include <cstdint>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace quire::server::http2 {

inline constexpr absl::string_view kPreface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

enum Type : int {
  kData,
  kHeaders,
  kPriority,
  kReset,
  kSettings,
  kPush,
  kPing,
  kGoAway,
  kWindow,
  kMore
};
inline constexpr int kEndStream = 1, kEndHeaders = 4, kPadded = 8;

inline std::string Frame(Type type, int flags, std::uint32_t stream, absl::string_view payload) {
  std::string frame;
  for (int i = 2; i >= 0; --i) frame.push_back(static_cast<char>(payload.size() >> (8 * i)));
  frame.push_back(static_cast<char>(type));
  frame.push_back(static_cast<char>(flags));
  for (int i = 3; i >= 0; --i) frame.push_back(static_cast<char>(stream >> (8 * i)));
  return absl::StrCat(frame, payload);
}

}  // namespace quire::server::http2
