#include "kernels/moe/router.h"

#include "absl/strings/str_cat.h"

namespace quire::kernels {

namespace internal {

absl::Status CheckRouter(const RouterParams& params) {
  const std::uint32_t experts = params.num_experts;
  if (experts == 0 || params.logits_stride < std::int64_t{experts}) {
    return absl::InvalidArgumentError(
        absl::StrCat("router of ", experts, " experts has logits_stride ", params.logits_stride,
                     ": there must be at least 1 expert, and the stride must be at least the "
                     "number of experts"));
  }
  if (params.groups == 0 || experts % params.groups != 0 || params.groups_kept == 0 ||
      params.groups_kept > params.groups) {
    return absl::InvalidArgumentError(
        absl::StrCat("router selects ", params.groups_kept, " of ", params.groups,
                     " groups: the number of groups must divide the ", experts,
                     " experts, and the selected number must be 1 to the number of groups"));
  }
  const std::uint32_t per_group = experts / params.groups;
  if (params.top_k == 0 || params.top_k > params.groups_kept * per_group) {
    return absl::InvalidArgumentError(absl::StrCat(
        "router has top_k ", params.top_k, ", it must be 1 to ", params.groups_kept * per_group));
  }
  if (params.groups > 1 && params.group_score == RouterGroupScore::kTop2Sum && per_group < 2) {
    return absl::InvalidArgumentError(
        "router groups have one expert each, kTop2Sum requires at least two");
  }
  return absl::OkStatus();
}

}  // namespace internal

std::int64_t RouterThreadBytes(std::uint32_t num_experts, std::uint32_t groups) {
  return (2 * std::int64_t{num_experts} + groups) * std::int64_t{sizeof(float)} + num_experts;
}

absl::Status Router(const Backend& backend, const RouterParams& params) {
  if (const absl::Status status = internal::CheckRouter(params); !status.ok()) return status;
  if constexpr (kHasCuda) {
    if (backend.cuda() != nullptr) return internal::RouterCuda(*backend.cuda(), params);
  }
  const auto scratch =
      static_cast<std::size_t>(RouterThreadBytes(params.num_experts, params.groups));
  // Cost: an exponential per expert, and a scan over all experts per selected expert.
  const double work = static_cast<double>(params.num_experts) * (20.0 + params.top_k);
  backend.ParallelFor(params.num_rows, work, [&](std::int64_t begin, std::int64_t end, int part) {
    internal::RouterCpu(params, begin, end, backend.workspace(part).Reserve(scratch));
  });
  return absl::OkStatus();
}

}  // namespace quire::kernels
