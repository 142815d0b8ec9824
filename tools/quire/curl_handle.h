#pragma once

// libcurl handles of the HTTP requests that `quire` sends.
//
// Threads: a handle is used by one thread at a time.

#include <curl/curl.h>

#include <cstdint>
#include <memory>

namespace quire::client {

struct CurlDeleter {
  void operator()(CURL* curl) const { curl_easy_cleanup(curl); }
  void operator()(curl_slist* list) const { curl_slist_free_all(list); }
};
using CurlPtr = std::unique_ptr<CURL, CurlDeleter>;
using HeaderPtr = std::unique_ptr<curl_slist, CurlDeleter>;

// Returns a handle for HTTP/1.1 without signals and without the proxies of the environment.
CurlPtr NewCurl();

// Returns the HTTP status of the last answer, or 0 if there was none.
std::int64_t ResponseCode(CURL* curl);

}  // namespace quire::client
