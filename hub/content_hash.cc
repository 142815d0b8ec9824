#include "hub/content_hash.h"

#include <openssl/evp.h>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "hub/cache/model_name.h"

namespace quire::hub {
namespace {

constexpr std::size_t kGitDigits = 40;

}  // namespace

void ContentHash::Deleter::operator()(evp_md_ctx_st* context) const {
  EVP_MD_CTX_free(context);
}

ContentHash::ContentHash(absl::string_view expected, std::int64_t size_bytes)
    : context_(EVP_MD_CTX_new()) {
  QUIRE_CHECK(IsContentHash(expected) && context_ != nullptr);
  const bool is_git = expected.size() == kGitDigits;
  QUIRE_CHECK(EVP_DigestInit_ex(context_.get(), is_git ? EVP_sha1() : EVP_sha256(), nullptr) == 1);
  if (is_git) Add(absl::StrCat("blob ", size_bytes, absl::string_view("\0", 1)));
}

ContentHash::~ContentHash() = default;
ContentHash::ContentHash(ContentHash&&) noexcept = default;
ContentHash& ContentHash::operator=(ContentHash&&) noexcept = default;

void ContentHash::Add(absl::string_view bytes) {
  QUIRE_CHECK(EVP_DigestUpdate(context_.get(), bytes.data(), bytes.size()) == 1);
}

std::string ContentHash::Finish() {
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned int size = 0;
  QUIRE_CHECK(EVP_DigestFinal_ex(context_.get(), digest, &size) == 1);
  return absl::BytesToHexString(absl::string_view(reinterpret_cast<const char*>(digest), size));
}

}  // namespace quire::hub
