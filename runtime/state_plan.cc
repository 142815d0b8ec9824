#include "runtime/state_plan.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace quire::runtime {
namespace {

constexpr std::int64_t kMinSnapshots = 2;
constexpr std::int64_t kMinIntervalTokens = 4096;

// Returns the minimum kv_bytes with which PlanStateSlots accepts this many rows. Snapshots use
// their share of these bytes, but at least kMinSnapshots slots.
std::int64_t NeededBytes(const StatePlanRequest& request, std::int64_t rows) {
  const std::int64_t others = (1 + rows) * request.slot_bytes + 2 * request.page_bytes;
  const double with_share = static_cast<double>(others) / std::max(1 - request.share, 1e-3);
  return std::max({2 * rows * request.slot_bytes, others + kMinSnapshots * request.slot_bytes,
                   static_cast<std::int64_t>(std::ceil(with_share))});
}

// Returns the number of snapshots, which does not depend on the number of rows.
std::int64_t NumSnapshots(const StatePlanRequest& request) {
  const auto share =
      static_cast<std::int64_t>(request.share * static_cast<double>(request.kv_bytes));
  const std::int64_t wanted = std::min(
      {share / request.slot_bytes, request.kv_bytes / request.page_bytes, request.max_pages});
  return std::max(wanted, kMinSnapshots);
}

// Returns the largest number of rows that fits. The result is 0 or negative if no row fits.
std::int64_t FittingRows(const StatePlanRequest& request) {
  const std::int64_t half = request.kv_bytes / 2 / request.slot_bytes;
  const std::int64_t slots = (request.kv_bytes - 2 * request.page_bytes) / request.slot_bytes;
  return std::min(half, slots - 1 - NumSnapshots(request));
}

absl::Status TooManyRowsError(const StatePlanRequest& request, std::int64_t rows) {
  const std::int64_t fits = FittingRows(request);
  const std::string states =
      request.may_lower_rows
          ? "the recurrent states of one sequence take "
          : absl::StrCat("scheduler.max_running_sequences is ", rows,
                         ", and the recurrent states of ", rows, " sequences take ");
  return absl::ResourceExhaustedError(absl::StrCat(
      states, rows * request.slot_bytes, " bytes, more than half of the ", request.kv_bytes,
      " bytes of the KV cache; ",
      fits > 0 ? absl::StrCat("lower scheduler.max_running_sequences to at most ", fits, ", or ")
               : std::string(),
      "raise kv_cache.capacity_bytes to at least ", NeededBytes(request, rows)));
}

}  // namespace

absl::StatusOr<StatePlan> PlanStateSlots(const StatePlanRequest& request) {
  StatePlan plan;
  plan.max_rows = request.max_rows;
  if (request.slot_bytes == 0) return plan;
  if (request.may_lower_rows) {
    plan.max_rows = static_cast<std::uint32_t>(
        std::clamp<std::int64_t>(FittingRows(request), 1, request.max_rows));
  }
  if (plan.max_rows > request.kv_bytes / 2 / request.slot_bytes) {
    return TooManyRowsError(request, plan.max_rows);
  }
  plan.slot_bytes = request.slot_bytes;
  plan.num_snapshots = static_cast<std::uint32_t>(NumSnapshots(request));
  plan.num_slots = 1 + plan.max_rows + plan.num_snapshots;
  const std::int64_t least = plan.bytes() + 2 * request.page_bytes;
  if (least > request.kv_bytes) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the KV cache has ", request.kv_bytes, " bytes, and ", plan.num_slots,
                     " slots of recurrent states and two pages take ", least,
                     "; raise kv_cache.capacity_bytes, or lower scheduler.max_running_sequences or "
                     "kv_cache.state_share"));
  }
  const std::int64_t tokens = request.slot_bytes * request.page_size / request.page_bytes;
  plan.slot_tokens = static_cast<std::uint32_t>(tokens);
  const std::int64_t pages =
      (std::max(tokens, kMinIntervalTokens) + request.page_size - 1) / request.page_size;
  plan.interval_tokens = static_cast<std::uint32_t>(pages * request.page_size);
  return plan;
}

}  // namespace quire::runtime
