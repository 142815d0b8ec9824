#include "models/config/mla_config.h"

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "models/config/config_reader.h"
#include "models/config/model_config.h"

namespace quire::models {
namespace {

constexpr std::uint32_t kMaxRank = 1u << 15;

}  // namespace

absl::StatusOr<MlaConfig> ReadMla(const ConfigReader& reader) {
  MlaConfig mla;
  if (!reader.Has("q_lora_rank")) return reader.Error("q_lora_rank", "is missing");
  QUIRE_ASSIGN_OR_RETURN(mla.q_lora_rank, reader.CountOr("q_lora_rank", 1, kMaxRank, 0));
  QUIRE_ASSIGN_OR_RETURN(mla.kv_lora_rank, reader.Count("kv_lora_rank", 1, kMaxRank));
  QUIRE_ASSIGN_OR_RETURN(mla.qk_nope_head_dim, reader.Count("qk_nope_head_dim", 1, kMaxHeadDim));
  QUIRE_ASSIGN_OR_RETURN(mla.qk_rope_head_dim, reader.Count("qk_rope_head_dim", 2, kMaxHeadDim));
  QUIRE_ASSIGN_OR_RETURN(mla.v_head_dim, reader.Count("v_head_dim", 1, kMaxHeadDim));
  if (mla.qk_rope_head_dim % 2 != 0) {
    return reader.Error("qk_rope_head_dim",
                        absl::StrCat("is ", mla.qk_rope_head_dim, ", it must be even"));
  }
  QUIRE_ASSIGN_OR_RETURN(mla.rope_interleave, reader.BoolOr("rope_interleave", true));
  return mla;
}

}  // namespace quire::models
