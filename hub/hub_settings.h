#pragma once

// The settings of the hub client, from the environment variables of huggingface_hub.
//
// Threads: any, as long as no thread changes the environment.

#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "hub/cache/cache_dir.h"

namespace quire::hub {

struct HubSettings {
  std::string endpoint;   // HF_ENDPOINT without trailing slashes; default https://huggingface.co
  std::string cache_dir;  // see CacheDir
  // HF_TOKEN, else the content of the file HF_TOKEN_PATH (default $HF_HOME/token); empty: no token.
  std::string token;
  bool is_offline = false;  // HF_HUB_OFFLINE
  // HF_HUB_DOWNLOAD_TIMEOUT: a transfer that receives no bytes for this long is retried.
  absl::Duration stall_timeout = absl::Seconds(10);
  // CURL_CA_BUNDLE or SSL_CERT_FILE: certificates to trust; empty: those of the system.
  std::string ca_file;

  // True if requests carry the token over http to another machine.
  bool sends_unencrypted_token() const;

  // If the value of a variable is wrong, returns INVALID_ARGUMENT with the variable.
  static absl::StatusOr<HubSettings> Read(const Environment& environment = ProcessEnvironment);
};

}  // namespace quire::hub
