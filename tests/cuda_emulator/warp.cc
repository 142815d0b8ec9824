#include "tests/cuda_emulator/warp.h"

#include <string>

namespace quire::cuda_emulator {
namespace {

struct ShuffleOperand {
  std::uint64_t value;
  std::uint32_t source;  // lane
  std::uint64_t result;
};

void ExchangeAll(void* const* operands, std::uint32_t, std::uint64_t) {
  for (std::uint32_t lane = 0; lane < kWarpSize; ++lane) {
    auto* const mine = static_cast<ShuffleOperand*>(operands[lane]);
    if (mine == nullptr) continue;
    const auto* const from = static_cast<const ShuffleOperand*>(operands[mine->source]);
    mine->result = from == nullptr ? ~std::uint64_t{0} : from->value;
  }
}

struct VoteOperand {
  bool value;
  std::uint32_t result;
};

void VoteAll(void* const* operands, std::uint32_t, std::uint64_t) {
  std::uint32_t votes = 0;
  for (std::uint32_t lane = 0; lane < kWarpSize; ++lane) {
    const auto* const vote = static_cast<const VoteOperand*>(operands[lane]);
    if (vote != nullptr && vote->value) votes |= 1u << lane;
  }
  for (std::uint32_t lane = 0; lane < kWarpSize; ++lane) {
    if (operands[lane] != nullptr) static_cast<VoteOperand*>(operands[lane])->result = votes;
  }
}

void MeetAll(void* const*, std::uint32_t mask, std::uint64_t) {
  MeetLanes(mask);
}

}  // namespace

void SyncWarp(const char* name, std::uint32_t mask) {
  WarpCollective(name, MeetAll, 0, mask, nullptr, /*all_live=*/false);
}

std::uint32_t Ballot(bool value, std::uint32_t mask) {
  VoteOperand operand{.value = value, .result = 0};
  WarpCollective("Ballot", VoteAll, 0, mask, &operand, /*all_live=*/false);
  return operand.result;
}

std::uint64_t ShuffleBits(std::uint64_t value, ShuffleKind kind, std::uint32_t operand,
                          std::uint32_t mask) {
  const std::uint32_t lane = current_thread->lane;
  std::uint32_t source = lane;
  switch (kind) {
    case ShuffleKind::kXor:
      if (operand >= kWarpSize) Fatal("ShuffleXor: lane mask " + std::to_string(operand));
      source = lane ^ operand;
      break;
    case ShuffleKind::kLane:
      source = operand % kWarpSize;
      break;
    case ShuffleKind::kUp:
      source = operand <= lane ? lane - operand : lane;
      break;
  }
  ShuffleOperand own{.value = value, .source = source, .result = 0};
  WarpCollective("Shuffle", ExchangeAll, static_cast<std::uint64_t>(kind), mask, &own,
                 /*all_live=*/false);
  return own.result;
}

}  // namespace quire::cuda_emulator
