#pragma once

// The macros that return an absl::Status to the caller on error.
//
//   QUIRE_RETURN_IF_ERROR(pool->Grow(n));
//   QUIRE_ASSIGN_OR_RETURN(const auto page, pool->Take());

#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#define QUIRE_STATUS_CONCAT_INNER_(a, b) a##b
#define QUIRE_STATUS_CONCAT_(a, b) QUIRE_STATUS_CONCAT_INNER_(a, b)

#define QUIRE_RETURN_IF_ERROR(expr)                \
  do {                                             \
    absl::Status quire_status_ = (expr);           \
    if (!quire_status_.ok()) return quire_status_; \
  } while (false)

#define QUIRE_ASSIGN_OR_RETURN(lhs, expr) \
  QUIRE_ASSIGN_OR_RETURN_(QUIRE_STATUS_CONCAT_(quire_status_or_, __LINE__), lhs, expr)

#define QUIRE_ASSIGN_OR_RETURN_(tmp, lhs, expr)  \
  auto tmp = (expr);                             \
  if (!tmp.ok()) return std::move(tmp).status(); \
  lhs = *std::move(tmp)
