#include "hub/hub_settings.h"

#include <arpa/inet.h>

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/small_file.h"
#include "base/status.h"

namespace quire::hub {
namespace {

constexpr std::size_t kMaxTokenBytes = 4096;

bool IsTrue(const std::optional<std::string>& value) {
  const std::string lower = absl::AsciiStrToLower(value.value_or(""));
  return lower == "1" || lower == "on" || lower == "yes" || lower == "true";
}

// Returns the part of a URL between "://" and the path.
absl::string_view Authority(absl::string_view url) {
  const std::size_t scheme = url.find("://");
  if (scheme != url.npos) url.remove_prefix(scheme + 3);
  return url.substr(0, url.find_first_of("/?#"));
}

bool IsLoopback(absl::string_view authority) {
  if (absl::StartsWith(authority, "[::1]")) return true;
  const std::string host(authority.substr(0, authority.find(':')));
  in_addr address = {};
  return host == "localhost" || (inet_pton(AF_INET, host.c_str(), &address) == 1 &&
                                 ntohl(address.s_addr) >> 24 == IN_LOOPBACKNET);
}

absl::StatusOr<std::string> ReadEndpoint(const Environment& environment) {
  const std::string value = environment("HF_ENDPOINT").value_or("https://huggingface.co");
  if (absl::StrContains(Authority(value), '@')) {  // the value is not printed: it has a secret
    return absl::InvalidArgumentError(
        "HF_ENDPOINT has a user name or password before its host; remove the part up to '@', and "
        "set HF_TOKEN to a token of the hub");
  }
  const bool is_url = absl::StartsWith(value, "https://") || absl::StartsWith(value, "http://");
  if (!is_url || !std::ranges::all_of(value, absl::ascii_isgraph)) {
    return absl::InvalidArgumentError(
        absl::StrCat("HF_ENDPOINT is \"", value, "\"; it must be a URL such as https://HOST"));
  }
  absl::string_view endpoint = value;
  while (absl::EndsWith(endpoint, "/")) endpoint.remove_suffix(1);
  return std::string(endpoint);
}

// Returns the token, or "" if there is none.
absl::StatusOr<std::string> ReadToken(const Environment& environment) {
  std::string origin = "HF_TOKEN", text;
  if (const auto token = environment("HF_TOKEN")) {
    text = *token;
  } else {
    const absl::StatusOr<std::string> home = HomeDir(environment);
    origin = environment("HF_TOKEN_PATH").value_or(home.ok() ? *home + "/token" : "");
    if (origin.empty()) return "";
    absl::StatusOr<std::string> file = ReadSmallFile(origin, kMaxTokenBytes);
    if (absl::IsNotFound(file.status())) return "";
    QUIRE_ASSIGN_OR_RETURN(text, std::move(file));
  }
  const absl::string_view token = absl::StripAsciiWhitespace(text);
  if (token.size() <= kMaxTokenBytes && std::ranges::all_of(token, absl::ascii_isgraph)) {
    return std::string(token);
  }
  return absl::InvalidArgumentError(
      absl::StrCat(origin, " is not a token: it has blanks, control characters or more than ",
                   kMaxTokenBytes, " bytes; set it to the token alone"));
}

}  // namespace

bool HubSettings::sends_unencrypted_token() const {
  return !token.empty() && !is_offline && absl::StartsWith(endpoint, "http://") &&
         !IsLoopback(Authority(endpoint));
}

absl::StatusOr<HubSettings> HubSettings::Read(const Environment& environment) {
  HubSettings settings;
  QUIRE_ASSIGN_OR_RETURN(settings.endpoint, ReadEndpoint(environment));
  QUIRE_ASSIGN_OR_RETURN(settings.cache_dir, CacheDir(environment));
  QUIRE_ASSIGN_OR_RETURN(settings.token, ReadToken(environment));
  settings.is_offline = IsTrue(environment("HF_HUB_OFFLINE"));
  if (const auto timeout = environment("HF_HUB_DOWNLOAD_TIMEOUT")) {
    int seconds = 0;
    if (!absl::SimpleAtoi(*timeout, &seconds) || seconds < 1 || seconds > 3600) {
      return absl::InvalidArgumentError(absl::StrCat("HF_HUB_DOWNLOAD_TIMEOUT is \"", *timeout,
                                                     "\"; it must be 1 to 3600 seconds"));
    }
    settings.stall_timeout = absl::Seconds(seconds);
  }
  settings.ca_file =
      environment("CURL_CA_BUNDLE").value_or(environment("SSL_CERT_FILE").value_or(""));
  return settings;
}

}  // namespace quire::hub
