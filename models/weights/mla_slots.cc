#include "models/weights/mla_slots.h"

#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace quire::models {
namespace {

// A matrix of its own, from rows of `whole`.
absl::StatusOr<LinearSlot> CutRows(SlotFinder& finder, const FormChooser& chooser,
                                   const formats::StoredTensor& whole, const std::string& label,
                                   std::int64_t first_row, std::int64_t rows, bool is_transposed) {
  const std::int64_t columns = whole.shape[1];
  // Of codes not where the rows are, but as many bytes as they take.
  const std::int64_t row_bytes = static_cast<std::int64_t>(whole.bytes.size()) / whole.shape[0];
  formats::StoredTensor piece = whole;
  piece.name = absl::StrCat(whole.name, "[", label, "]");
  piece.shape = {rows, columns};
  if (is_transposed) std::swap(piece.shape[0], piece.shape[1]);
  piece.is_transposed = is_transposed;
  piece.first_row = first_row;
  piece.bytes = whole.bytes.subspan(static_cast<std::size_t>(first_row * row_bytes),
                                    static_cast<std::size_t>(rows * row_bytes));
  LinearSlot slot;
  slot.n = static_cast<std::uint32_t>(piece.shape[0]);
  slot.k = static_cast<std::uint32_t>(piece.shape[1]);
  QUIRE_ASSIGN_OR_RETURN(slot.matrices,
                         chooser.Matrices({finder.AddPiece(std::move(piece))}, /*is_head=*/false));
  return slot;
}

absl::Status CutHeads(SlotFinder& finder, const FormChooser& chooser, const MlaSpec& mla,
                      const std::string& name, MlaSlots* slots) {
  const std::int64_t rows = std::int64_t{mla.num_heads} * (mla.nope_size + mla.v_size);
  QUIRE_ASSIGN_OR_RETURN(
      const formats::StoredTensor* whole,
      finder.Find(absl::StrCat(name, ".weight"),
                  {{rows, "num_attention_heads * (qk_nope_head_dim + v_head_dim)"},
                   {mla.kv_lora_rank, "kv_lora_rank"}}));
  if (whole->blocks != formats::GgmlType::kNone) {
    return absl::UnimplementedError(absl::StrCat(whole->file, ": tensor ", whole->name, " of type ",
                                                 whole->type, " is not supported (supported: F32, ",
                                                 "F16, BF16)"));
  }
  for (std::uint32_t h = 0; h < mla.num_heads; ++h) {
    const std::int64_t first = std::int64_t{h} * (mla.nope_size + mla.v_size);
    QUIRE_ASSIGN_OR_RETURN(LinearSlot keys,
                           CutRows(finder, chooser, *whole, absl::StrCat("keys ", h), first,
                                   mla.nope_size, /*is_transposed=*/true));
    slots->to_latent.push_back(std::move(keys));
    QUIRE_ASSIGN_OR_RETURN(LinearSlot values,
                           CutRows(finder, chooser, *whole, absl::StrCat("values ", h),
                                   first + mla.nope_size, mla.v_size, /*is_transposed=*/false));
    slots->from_latent.push_back(std::move(values));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<MlaSlots> FindMla(SlotFinder& finder, const FormChooser& chooser,
                                 std::uint32_t hidden, const MlaSpec& mla, const TensorNames& names,
                                 const std::string& prefix) {
  const auto name = [&](absl::string_view part) { return absl::StrCat(prefix, part); };
  const Extent width{hidden, "hidden_size"};
  const Extent queries{std::int64_t{mla.num_heads} * (mla.nope_size + mla.rope_size),
                       "num_attention_heads * (qk_nope_head_dim + qk_rope_head_dim)"};
  const Extent rank{mla.kv_lora_rank, "kv_lora_rank"};
  const Extent row{std::int64_t{mla.kv_lora_rank} + mla.rope_size,
                   "kv_lora_rank + qk_rope_head_dim"};
  NormSpec norm;
  norm.kind = NormKind::kRms;
  norm.eps = mla.latent_eps;
  MlaSlots slots;
  if (mla.q_lora_rank == 0) {
    QUIRE_ASSIGN_OR_RETURN(slots.q,
                           FindLinear(finder, chooser, {{name(names.q), queries, false}}, width));
  } else {
    const Extent q_rank{mla.q_lora_rank, "q_lora_rank"};
    QUIRE_ASSIGN_OR_RETURN(
        slots.q_a, FindLinear(finder, chooser, {{name(names.q_a), q_rank, mla.qa_bias}}, width));
    QUIRE_ASSIGN_OR_RETURN(slots.q_a_norm, FindNorm(finder, norm, name(names.q_a_norm), q_rank));
    QUIRE_ASSIGN_OR_RETURN(
        slots.q, FindLinear(finder, chooser, {{name(names.q_b), queries, false}}, q_rank));
  }
  QUIRE_ASSIGN_OR_RETURN(
      slots.kv_a, FindLinear(finder, chooser, {{name(names.kv_a), row, mla.kva_bias}}, width));
  QUIRE_ASSIGN_OR_RETURN(slots.kv_a_norm, FindNorm(finder, norm, name(names.kv_a_norm), rank));
  QUIRE_RETURN_IF_ERROR(CutHeads(finder, chooser, mla, name(names.kv_b), &slots));
  return slots;
}

}  // namespace quire::models
