#include "cache_manager/views/tma_plan.h"

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace quire::kernels::cuda {
namespace {

constexpr std::uint32_t kMaxBox = 256;
constexpr std::uint64_t kMaxExtent = std::uint64_t{1} << 32;
constexpr std::uint64_t kStrideLimit = std::uint64_t{1} << 40;
// Coordinates are signed 32-bit integers, and a box extends up to 256 elements past its coordinate.
constexpr std::uint64_t kCoordinateLimit = (std::uint64_t{1} << 31) - kMaxBox;
constexpr std::int32_t kHopper = 90;
constexpr std::int32_t kBlackwell = 100;

std::string Capability(std::int32_t value) {
  return absl::StrCat(value / 10, ".", value % 10);
}

template <typename... Parts>
absl::Status Refuse(absl::string_view builder, const Parts&... parts) {
  return absl::InvalidArgumentError(absl::StrCat(builder, ": ", parts...));
}

TmaPlan StartPlan(absl::string_view builder, std::int32_t capability, const TmaSource& source,
                  TmaSwizzle swizzle, TmaL2Promotion l2) {
  TmaPlan plan;
  plan.builder = builder;
  plan.compute_capability = capability;
  plan.base = source.base;
  plan.dtype = source.dtype;
  plan.swizzle = swizzle;
  plan.l2 = l2;
  return plan;
}

absl::StatusOr<TmaPlan> CheckedPlan(TmaPlan plan) {
  QUIRE_RETURN_IF_ERROR(CheckTmaPlan(plan));
  return plan;
}

std::uint64_t Unsigned(std::int64_t value) {
  return static_cast<std::uint64_t>(value);
}

// Returns the number of columns of a tile, which must be whole units. If `columns` is 0, the tile
// has all columns of the content, padded to whole units.
absl::StatusOr<std::uint32_t> TileColumns(absl::string_view builder, const TmaSource& source,
                                          std::uint32_t columns, TmaSwizzle swizzle) {
  const std::uint32_t unit = TmaUnit(source.element_bytes(), swizzle);
  if (columns == 0) return PaddedDepth(source.element_bytes(), swizzle, source.content_size);
  if (columns % unit != 0) {
    return Refuse(builder, "tile_columns is ", columns, ", it must be a multiple of ", unit);
  }
  return columns;
}

absl::Status CheckTileRows(absl::string_view builder, const TmaSource& source, std::uint32_t rows) {
  if (rows == 0) return Refuse(builder, "tile_rows is 0, it must be at least 1");
  const std::uint32_t page = source.page_size;
  if (page != 0 && rows % page != 0 && page % rows != 0) {
    return Refuse(builder, "tile_rows is ", rows,
                  ", it must be a multiple or a divisor of the page size ", page);
  }
  return absl::OkStatus();
}

absl::StatusOr<TmaPlan> FoldedTile(TmaPlan plan, const TmaSource& source, const TmaTileSpec& spec,
                                   std::uint32_t columns) {
  const std::uint32_t e = source.element_bytes();
  const std::uint32_t box_rows = TmaBoxRows(spec.tile_rows, source.page_size);
  const std::uint32_t chunks =
      TmaFoldChunks(e, spec.fold, columns, source.content_size, box_rows, spec.tile_rows);
  if (spec.swizzle != TmaSwizzle::k128B || chunks == 1 || source.content_size != source.head_size) {
    return Refuse(plan.builder, "a tile of ", spec.tile_rows, " rows and ", columns,
                  " columns over heads of ", source.content_size, " columns and pages of ",
                  source.page_size, " rows cannot fold its chunks");
  }
  const std::uint32_t unit = TmaUnit(e, spec.swizzle);
  const std::uint64_t row = Unsigned(source.row_bytes());
  const std::uint64_t head = std::uint64_t{source.head_size} * e;
  if (spec.fold == TmaFold::kTile) {
    plan.rank = 4;
    plan.extents = {unit, Unsigned(source.num_rows), source.head_size / unit, source.num_heads};
    plan.strides = {row, unit * e, head};
    plan.box = {unit, box_rows, chunks, 1};
  } else {
    plan.rank = 5;
    plan.extents = {unit, 8, source.head_size / unit, Unsigned(source.num_rows / 8),
                    source.num_heads};
    plan.strides = {row, unit * e, 8 * row, head};
    plan.box = {unit, 8, chunks, box_rows / 8, 1};
  }
  return CheckedPlan(plan);
}

// A cache must have one scale per row. The scales of a tensor are a flat list, which must fill
// whole 16-byte units.
absl::Status CheckScales(absl::string_view builder, const TmaSource& source) {
  if (source.scales == nullptr) return Refuse(builder, source.name, " has no f32 scales");
  if (source.scales_are_paged && source.scales_per_row != 1) {
    return Refuse(builder, source.name, " has ", source.scales_per_row,
                  " scales per row, it must have 1");
  }
  if (!source.scales_are_paged && source.num_scales % kScaleAlignment != 0) {
    return Refuse(builder, source.name, " has ", source.num_scales,
                  " scales, the number must be a multiple of ", kScaleAlignment);
  }
  return absl::OkStatus();
}

absl::Status CheckRopeRow(absl::string_view builder, const TmaSource& source,
                          std::uint32_t padded_depth, std::uint32_t rope) {
  const std::int64_t row = std::int64_t{padded_depth} + 2 * std::int64_t{rope};
  if (padded_depth != source.content_size * source.element_bytes() || row != source.row_bytes()) {
    return Refuse(builder, "padded_depth ", padded_depth, " and ", rope,
                  " rope values do not match the row of ", source.name, ", which has ",
                  source.content_size, " bytes of content and ", source.row_bytes(),
                  " bytes in total");
  }
  return absl::OkStatus();
}

absl::Status CheckGather(absl::string_view builder, std::uint32_t width, std::uint32_t height) {
  if (width == 0) return Refuse(builder, "tile_width is 0, it must be at least 1");
  if (height == 0 || height % 4 != 0) {
    return Refuse(builder, "tile_height is ", height, ", it must be a multiple of 4");
  }
  return absl::OkStatus();
}

absl::StatusOr<TmaPlan> GatherPlan(TmaPlan plan, std::uint64_t extent, std::uint64_t row_bytes,
                                   const TmaSource& source, std::uint32_t width,
                                   std::uint32_t height) {
  const auto e = static_cast<std::uint32_t>(DTypeSize(plan.dtype));
  const std::uint32_t box = Gather4BoxWidth(e, width, plan.swizzle);
  plan.rank = 2;
  plan.extents = {extent, Unsigned(source.num_rows)};
  plan.strides = {row_bytes};
  plan.box = {box, 1};
  plan.tile = {height, 1, (width + box - 1) / box * box};
  return CheckedPlan(plan);
}

}  // namespace

std::int64_t TmaPlan::box_bytes() const {
  std::int64_t bytes = DTypeSize(dtype);
  for (std::uint32_t i = 0; i < rank; ++i) bytes *= box[i];
  return bytes;
}

std::int64_t TmaPlan::tile_bytes() const {
  return DTypeSize(dtype) * tile[0] * tile[1] * tile[2];
}

absl::StatusOr<TmaPlan> PlanTmaTile(const TmaSource& source, const TmaTileSpec& spec) {
  TmaPlan plan = StartPlan("CreateTmaTile", kHopper, source, spec.swizzle, spec.l2);
  QUIRE_RETURN_IF_ERROR(CheckTileRows(plan.builder, source, spec.tile_rows));
  QUIRE_ASSIGN_OR_RETURN(const std::uint32_t columns,
                         TileColumns(plan.builder, source, spec.tile_columns, spec.swizzle));
  plan.tile = {spec.tile_rows, 1, columns};
  if (spec.fold != TmaFold::kNone) return FoldedTile(plan, source, spec, columns);
  const std::uint32_t e = source.element_bytes();
  plan.rank = 3;
  plan.extents = {source.content_size, source.num_heads, Unsigned(source.num_rows)};
  plan.strides = {std::uint64_t{source.head_size} * e, Unsigned(source.row_bytes())};
  plan.box = {TmaUnit(e, spec.swizzle), 1, TmaBoxRows(spec.tile_rows, source.page_size)};
  return CheckedPlan(plan);
}

absl::StatusOr<TmaPlan> PlanPagedTmaTile(const TmaSource& source, const TmaTileSpec& spec) {
  TmaPlan plan = StartPlan("CreatePagedTmaTile", kHopper, source, spec.swizzle, spec.l2);
  QUIRE_RETURN_IF_ERROR(CheckTileRows(plan.builder, source, spec.tile_rows));
  QUIRE_ASSIGN_OR_RETURN(const std::uint32_t columns,
                         TileColumns(plan.builder, source, spec.tile_columns, spec.swizzle));
  if (source.page_size == 0 || spec.fold != TmaFold::kNone) {
    return Refuse(plan.builder, source.name,
                  source.page_size == 0 ? " has no pages"
                                        : " cannot fold its chunks in a tile addressed by page");
  }
  const std::uint32_t e = source.element_bytes();
  const std::uint64_t row = Unsigned(source.row_bytes());
  plan.tile = {spec.tile_rows, 1, columns};
  plan.rank = 4;
  plan.extents = {source.content_size, source.num_heads, source.page_size, source.num_pages};
  plan.strides = {std::uint64_t{source.head_size} * e, row, source.rows_per_page * row};
  plan.box = {TmaUnit(e, spec.swizzle), 1, TmaBoxRows(spec.tile_rows, source.page_size), 1};
  return CheckedPlan(plan);
}

absl::StatusOr<TmaPlan> PlanRaggedTmaTile(const TmaSource& source, const RaggedTmaTileSpec& spec) {
  TmaPlan plan =
      StartPlan("CreateRaggedTmaTile", kHopper, source, spec.swizzle, TmaL2Promotion::kNone);
  if (spec.tile_rows == 0 || spec.tile_rows > cache::kGuardRows) {
    return Refuse(plan.builder, "tile_rows is ", spec.tile_rows, ", it must be 1 to ",
                  cache::kGuardRows, ", the rows mapped before a view");
  }
  QUIRE_ASSIGN_OR_RETURN(const std::uint32_t columns,
                         TileColumns(plan.builder, source, spec.tile_columns, spec.swizzle));
  const std::uint32_t e = source.element_bytes();
  const std::int64_t before = spec.tile_rows * source.row_bytes();
  // This address may lie before the first element of the allocation, so it is computed as an
  // integer.
  plan.base = reinterpret_cast<const void*>(reinterpret_cast<std::uintptr_t>(source.base) -
                                            static_cast<std::uintptr_t>(before));
  plan.tile = {spec.tile_rows, 1, columns};
  plan.rank = 3;
  plan.extents = {source.content_size, spec.tile_rows,
                  source.num_heads * Unsigned(source.num_rows + 1)};
  plan.strides = {Unsigned(source.row_bytes()), std::uint64_t{source.head_size} * e};
  plan.box = {TmaUnit(e, spec.swizzle), spec.tile_rows, 1};
  return CheckedPlan(plan);
}

absl::StatusOr<TmaPlan> PlanGather4TmaTile(const TmaSource& source,
                                           const Gather4TmaTileSpec& spec) {
  TmaPlan plan = StartPlan("CreateGather4TmaTile", kBlackwell, source, spec.swizzle, spec.l2);
  QUIRE_RETURN_IF_ERROR(CheckGather(plan.builder, spec.tile_width, spec.tile_height));
  if (spec.dtype != DType::kInvalid) plan.dtype = spec.dtype;
  const std::int64_t e = DTypeSize(plan.dtype);
  if (source.row_bytes() % e != 0) {
    return Refuse(plan.builder, "a row of ", source.row_bytes(), " bytes is not a whole number of ",
                  DTypeName(plan.dtype), " elements");
  }
  const std::int64_t row = source.row_bytes() / e;
  if ((spec.tile_stride != 0 && spec.tile_stride != row) || spec.tile_width > row) {
    return Refuse(plan.builder, "tile_stride ", spec.tile_stride, " and tile_width ",
                  spec.tile_width, " do not fit rows of ", row, " elements");
  }
  return GatherPlan(plan, Unsigned(row), Unsigned(source.row_bytes()), source, spec.tile_width,
                    spec.tile_height);
}

absl::StatusOr<TmaPlan> PlanRopeTmaTile(const TmaSource& source, const RopeTmaTileSpec& spec) {
  TmaPlan plan =
      StartPlan("CreateRopeTmaTile", kHopper, source, spec.swizzle, TmaL2Promotion::kNone);
  QUIRE_RETURN_IF_ERROR(CheckTileRows(plan.builder, source, spec.tile_rows));
  QUIRE_RETURN_IF_ERROR(CheckRopeRow(plan.builder, source, spec.padded_depth, spec.tile_columns));
  plan.dtype = DType::kBF16;
  plan.base = static_cast<const std::byte*>(source.base) + spec.padded_depth;
  const std::uint32_t unit = TmaUnit(sizeof(BF16), spec.swizzle);
  if (spec.tile_columns % unit != 0) {
    return Refuse(plan.builder, "tile_columns is ", spec.tile_columns,
                  ", it must be a multiple of ", unit);
  }
  const std::uint64_t row = Unsigned(source.row_bytes());
  plan.tile = {spec.tile_rows, 1, spec.tile_columns};
  plan.rank = 3;
  plan.extents = {spec.tile_columns, 1, Unsigned(source.num_rows)};
  plan.strides = {row, row};
  plan.box = {unit, 1, TmaBoxRows(spec.tile_rows, source.page_size)};
  return CheckedPlan(plan);
}

absl::StatusOr<TmaPlan> PlanRopeGather4TmaTile(const TmaSource& source,
                                               const RopeGather4TmaTileSpec& spec) {
  TmaPlan plan = StartPlan("CreateRopeGather4TmaTile", kBlackwell, source, spec.swizzle, spec.l2);
  QUIRE_RETURN_IF_ERROR(CheckGather(plan.builder, spec.tile_width, spec.tile_height));
  QUIRE_RETURN_IF_ERROR(CheckRopeRow(plan.builder, source, spec.padded_depth, spec.tile_width));
  plan.dtype = DType::kBF16;
  plan.base = static_cast<const std::byte*>(source.base) + spec.padded_depth;
  return GatherPlan(plan, spec.tile_width, Unsigned(source.row_bytes()), source, spec.tile_width,
                    spec.tile_height);
}

absl::StatusOr<TmaPlan> PlanScaleTmaTile(const TmaSource& source, const ScaleTmaTileSpec& spec) {
  TmaPlan plan =
      StartPlan("CreateScaleTmaTile", kHopper, source, TmaSwizzle::kNone, TmaL2Promotion::kNone);
  QUIRE_RETURN_IF_ERROR(CheckTileRows(plan.builder, source, spec.tile_rows));
  QUIRE_RETURN_IF_ERROR(CheckScales(plan.builder, source));
  if (source.scales_are_paged && source.page_size % spec.tile_rows != 0) {
    return Refuse(plan.builder, "tile_rows is ", spec.tile_rows, ", it must divide the page size ",
                  source.page_size);
  }
  const std::uint32_t window =
      source.scales_are_paged ? TmaScaleWindow(spec.tile_rows) : spec.tile_rows;
  plan.base = source.scales;
  plan.dtype = DType::kF32;
  plan.rank = 1;
  plan.extents = {Unsigned(source.num_scales)};
  plan.box = {window};
  plan.tile = {window, 1, 1};
  return CheckedPlan(plan);
}

absl::Status CheckTmaDevice(const Device& device, const TmaPlan& plan) {
  if (!device.is_cpu() && device.compute_capability >= plan.compute_capability) {
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(absl::StrCat(
      plan.builder, " needs a GPU of compute capability ", Capability(plan.compute_capability),
      ", but the device is ", device.name,
      device.is_cpu() ? ""
                      : absl::StrCat(" of capability ", Capability(device.compute_capability))));
}

absl::Status CheckTmaPlan(const TmaPlan& plan) {
  const absl::string_view builder = plan.builder;
  if (plan.rank < 1 || plan.rank > kMaxTmaRank) {
    return Refuse(builder, "rank is ", plan.rank, ", it must be 1 to ", kMaxTmaRank);
  }
  const auto base = reinterpret_cast<std::uintptr_t>(plan.base);
  if (base == 0 || base % 16 != 0) {
    return Refuse(builder, "base address ", base, " must be a nonzero multiple of 16 bytes");
  }
  for (std::uint32_t i = 0; i < plan.rank; ++i) {
    if (plan.extents[i] < 1 || plan.extents[i] > kMaxExtent) {
      return Refuse(builder, "extent ", i, " is ", plan.extents[i], ", it must be 1 to 2^32");
    }
    if (plan.extents[i] > kCoordinateLimit) {
      return Refuse(builder, "extent ", i, " is ", plan.extents[i], ", it must be at most ",
                    kCoordinateLimit, ", because coordinates are signed 32-bit and a box adds 256");
    }
    if (plan.box[i] < 1 || plan.box[i] > kMaxBox) {
      return Refuse(builder, "box extent ", i, " is ", plan.box[i], ", it must be 1 to ", kMaxBox);
    }
  }
  for (std::uint32_t i = 0; i + 1 < plan.rank; ++i) {
    if (plan.strides[i] % 16 != 0 || plan.strides[i] >= kStrideLimit) {
      return Refuse(builder, "stride of extent ", i + 1, " is ", plan.strides[i],
                    " bytes, it must be a multiple of 16 below 2^40");
    }
  }
  const std::int64_t row = plan.box[0] * DTypeSize(plan.dtype);
  if (row == 0 || row % 16 != 0) {
    return Refuse(builder, "a box row is ", row, " bytes, it must be a multiple of 16");
  }
  const std::int64_t span = 16 << static_cast<int>(plan.swizzle);
  if (plan.swizzle != TmaSwizzle::kNone && row > span) {
    return Refuse(builder, "a box row is ", row, " bytes, it must be at most ", span,
                  ", the span of the swizzle");
  }
  return absl::OkStatus();
}

}  // namespace quire::kernels::cuda
