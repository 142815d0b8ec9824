#include "tools/quire/curl_handle.h"

namespace quire::client {

CurlPtr NewCurl() {
  [[maybe_unused]] static const CURLcode initialized = curl_global_init(CURL_GLOBAL_DEFAULT);
  CurlPtr curl(curl_easy_init());
  curl_easy_setopt(curl.get(), CURLOPT_NOSIGNAL, 1L);  // signals are not safe with several threads
  curl_easy_setopt(curl.get(), CURLOPT_HTTP_VERSION, CURL_HTTP_VERSION_1_1);
  curl_easy_setopt(curl.get(), CURLOPT_NOPROXY, "*");
  return curl;
}

std::int64_t ResponseCode(CURL* curl) {
  long code = 0;  // NOLINT(google-runtime-int): libcurl writes a long
  curl_easy_getinfo(curl, CURLINFO_RESPONSE_CODE, &code);
  return code;
}

}  // namespace quire::client
