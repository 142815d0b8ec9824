#include "server/auth/certificate_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <string>

#include "absl/time/clock.h"
#include "tests/server/test_certificates.h"
#include "tests/testing/temp_dir.h"
#include "tests/testing/waiting.h"

namespace quire::server {
namespace {

using ::testing::HasSubstr;

class CertificateStoreTest : public ::testing::Test {
 protected:
  CertificateStoreTest() { Write(good_, good_); }

  void Write(const TestCertificate& certificate, const TestCertificate& key) {
    WriteText(certificate.certificate_pem(), key.key_pem());
  }
  void WriteText(const std::string& certificate, const std::string& key) {
    options_.cert_file = dir_.Write("cert.pem", certificate);
    options_.key_file = dir_.Write("key.pem", key);
  }

  std::string Error() const {
    return std::string(ReadCertificates(options_, absl::Now()).status().message());
  }

  const TestCertificate good_;
  testing::TempDir dir_;
  TlsOptions options_;
};

TEST_F(CertificateStoreTest, AcceptsAGoodPair) {
  const auto read = ReadCertificates(options_, absl::Now());
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->chain, good_.certificate_pem());
  EXPECT_EQ(read->private_key, good_.key_pem());
  EXPECT_EQ(read->subject, "/CN=localhost");
  EXPECT_EQ(read->client_ca, "");
}

TEST_F(CertificateStoreTest, NamesTheBadFileAndItsFault) {
  const absl::Time now = absl::Now();
  const TestCertificate expired(
      {.not_before = now - absl::Hours(48), .not_after = now - absl::Hours(24)});
  const TestCertificate future(
      {.not_before = now + absl::Hours(24), .not_after = now + absl::Hours(48)});
  const TestCertificate weak({.rsa_bits = 1024});
  const TestCertificate other;

  Write(expired, expired);
  EXPECT_THAT(Error(), HasSubstr("tls.cert_file: " + options_.cert_file + " expired at "));
  Write(future, future);
  EXPECT_THAT(Error(), HasSubstr("is not valid before "));
  Write(good_, other);
  EXPECT_THAT(Error(), HasSubstr("tls.key_file: " + options_.key_file +
                                 " is not the key of the certificate in "));
  Write(weak, weak);
  EXPECT_THAT(Error(), HasSubstr("is refused by the TLS library: ee key too small"));
  // A bad certificate in the chain would fail every handshake.
  WriteText(good_.certificate_pem() + weak.certificate_pem(), good_.key_pem());
  EXPECT_THAT(Error(), HasSubstr("is refused by the TLS library: ca key too small"));
  WriteText(good_.key_pem(), good_.certificate_pem());
  EXPECT_THAT(Error(), HasSubstr("contains no PEM certificate"));
  WriteText(good_.certificate_pem(), "nonsense");
  EXPECT_THAT(Error(), HasSubstr("contains no PEM private key"));
  WriteText("", good_.key_pem());
  EXPECT_THAT(Error(), HasSubstr("contains no PEM certificate"));
  WriteText(
      good_.certificate_pem() + "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
      good_.key_pem());
  EXPECT_THAT(Error(), HasSubstr("contains a malformed certificate after certificate 1"));
  WriteText(good_.certificate_pem() + expired.certificate_pem(), good_.key_pem());
  EXPECT_THAT(Error(), HasSubstr("expired at"));

  Write(good_, good_);
  options_.key_file = dir_.path() + "/absent";
  EXPECT_THAT(Error(),
              HasSubstr("tls.key_file: " + options_.key_file + " cannot be read: No such"));
}

TEST_F(CertificateStoreTest, AcceptsOneGoodAuthority) {
  const absl::Time now = absl::Now();
  const TestCertificate expired(
      {.not_before = now - absl::Hours(48), .not_after = now - absl::Hours(24)});
  options_.client_ca_file =
      dir_.Write("ca.pem", expired.certificate_pem() + good_.certificate_pem());
  EXPECT_EQ(Error(), "");
  options_.client_ca_file = dir_.Write("ca.pem", expired.certificate_pem());
  EXPECT_THAT(Error(), HasSubstr("tls.client_ca_file: "));
  options_.client_ca_file = dir_.Write("ca.pem", "x");
  EXPECT_THAT(Error(), HasSubstr("contains no PEM certificate"));
}

TEST_F(CertificateStoreTest, GoodFilesReplaceOldOnesAndBadFilesDoNot) {
  options_.refresh_interval = absl::Milliseconds(20);
  const auto made = CertificateStore::Create(options_);
  ASSERT_TRUE(made.ok()) << made.status();
  CertificateStore& store = **made;
  EXPECT_EQ(store.current()->version, 1);
  const TestCertificate next({.common_name = "next"});

  // A new certificate is written before its key, so the two do not match for a moment.
  dir_.Write("cert.pem", next.certificate_pem());
  EXPECT_FALSE(store.Refresh().ok());
  EXPECT_EQ(store.current()->chain, good_.certificate_pem());
  dir_.Write("key.pem", next.key_pem());
  ASSERT_TRUE(testing::WaitUntil([&] { return store.current()->version != 1; }));
  EXPECT_EQ(store.current()->version, 2);
  EXPECT_EQ(store.current()->chain, next.certificate_pem());
  EXPECT_EQ(store.current()->private_key, next.key_pem());

  EXPECT_TRUE(store.Refresh().ok());
  EXPECT_EQ(store.current()->version, 2);  // rereading the same files is no new version
  unlink(options_.key_file.c_str());
  EXPECT_FALSE(store.Refresh().ok());
  EXPECT_EQ(store.current()->version, 2);
}

// A chain truncated between two certificates parses, and clients would miss the rest.
TEST_F(CertificateStoreTest, ReadsChainWrittenInPlaceOnceComplete) {
  options_.refresh_interval = absl::Seconds(1);
  const auto made = CertificateStore::Create(options_);
  ASSERT_TRUE(made.ok()) << made.status();
  CertificateStore& store = **made;
  const TestCertificate authority;
  const std::string whole = good_.certificate_pem() + authority.certificate_pem();
  absl::Time last = MonotonicNow();
  absl::Duration longest_pause;
  for (int i = 0; i < 30; ++i) {
    const absl::Time begin = MonotonicNow();
    dir_.Write("cert.pem",
               good_.certificate_pem() + std::string(static_cast<std::size_t>(i), '\n'));
    longest_pause = std::max(longest_pause, MonotonicNow() - last);
    last = begin;
    testing::Pace(absl::Milliseconds(50));
  }
  const bool is_untouched = store.current()->version == 1;
  dir_.Write("cert.pem", whole);
  longest_pause = std::max(longest_pause, MonotonicNow() - last);
  if (longest_pause >= kSettleTime) GTEST_SKIP() << "the machine was too slow for the writer";
  EXPECT_TRUE(is_untouched);
  ASSERT_TRUE(testing::WaitUntil([&] { return store.current()->version != 1; }));
  EXPECT_EQ(store.current()->version, 2);
  EXPECT_EQ(store.current()->chain, whole);
}

TEST_F(CertificateStoreTest, RejectsBlockingFiles) {
  unlink(options_.cert_file.c_str());
  ASSERT_EQ(mkfifo(options_.cert_file.c_str(), 0600), 0);
  EXPECT_EQ(Error(),
            "tls.cert_file: " + options_.cert_file + " cannot be read: it is not a regular file");
}

// The store's own clock reads newer files while a reload that read older ones still prepares its
// other parts.
TEST_F(CertificateStoreTest, EarlierReadDoesNotReplaceALaterOne) {
  options_.refresh_interval = absl::Hours(1);
  const auto made = CertificateStore::Create(options_);
  ASSERT_TRUE(made.ok()) << made.status();
  CertificateStore& store = **made;
  const TestCertificate second({.common_name = "second"});
  const TestCertificate third({.common_name = "third"});
  Write(second, second);
  auto slow = store.Read();
  ASSERT_TRUE(slow.ok()) << slow.status();
  Write(third, third);
  EXPECT_TRUE(store.Refresh().ok());
  EXPECT_EQ(store.current()->chain, third.certificate_pem());
  store.Publish(*std::move(slow));
  EXPECT_EQ(store.current()->chain, third.certificate_pem());
  EXPECT_EQ(store.current()->version, 2);
  // The order of the reads counts, not the time. Files read now are newer again.
  Write(second, second);
  auto fresh = store.Read();
  ASSERT_TRUE(fresh.ok()) << fresh.status();
  store.Publish(*std::move(fresh));
  EXPECT_EQ(store.current()->chain, second.certificate_pem());
  EXPECT_EQ(store.current()->version, 3);
}

}  // namespace
}  // namespace quire::server
