#pragma once

// gRPC server credentials whose certificates may change while the server runs.
//
// Place:      between CertificateStore and GrpcListener.
// Invariants: a handshake uses what the store holds when it begins; TLS 1.2 or newer.
// Threads:    any.
// Lifetime:   the store and the credentials outlive the gRPC server, which asks them for each
//             handshake.
//
// gRPC's own FileWatcherCertificateProvider is not used: it hands on what it reads, so a key that
// does not belong to the certificate ends the service instead of leaving the old pair in use.

#include <grpcpp/security/server_credentials.h>

#include <memory>

#include "server/auth/certificate_store.h"

namespace quire::server {

// For one port: each port learns of new certificates through credentials of its own.
std::shared_ptr<grpc::ServerCredentials> MakeTlsCredentials(const CertificateStore* store);

}  // namespace quire::server
