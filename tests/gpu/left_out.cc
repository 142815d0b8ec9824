// Replaces two parts in the programs of a bundle to make it smaller: the embedded model (10 MiB),
// and libcurl with its forty libraries, which the client needs for HTTP only.

#include <curl/curl.h>

#include <vector>

#include "server/embedded_model.h"

namespace quire::server {

std::vector<formats::ModelFiles::MemoryFile> StoryFiles() {
  return {};
}

}  // namespace quire::server

extern "C" {

CURLcode curl_global_init(long /*flags*/) {
  return CURLE_OK;
}
// The caller reports "out of memory". A bundle's client uses gRPC only.
CURL* curl_easy_init() {
  return nullptr;
}
void curl_easy_cleanup(CURL* /*handle*/) {}
CURLcode curl_easy_perform(CURL* /*handle*/) {
  return CURLE_FAILED_INIT;
}
#undef curl_easy_setopt
CURLcode curl_easy_setopt(CURL* /*handle*/, CURLoption /*option*/, ...) {
  return CURLE_FAILED_INIT;
}
#undef curl_easy_getinfo
CURLcode curl_easy_getinfo(CURL* /*handle*/, CURLINFO /*info*/, ...) {
  return CURLE_FAILED_INIT;
}
const char* curl_easy_strerror(CURLcode /*code*/) {
  return "a bundle for a GPU machine has no HTTP client";
}
curl_slist* curl_slist_append(curl_slist* /*list*/, const char* /*text*/) {
  return nullptr;
}
void curl_slist_free_all(curl_slist* /*list*/) {}

}  // extern "C"
