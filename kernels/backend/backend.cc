#include "kernels/backend/backend.h"

#include <algorithm>
#include <atomic>
#include <new>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status.h"
#include "kernels/backend/isa.h"

namespace quire::kernels {
namespace {

// Total cost in nanoseconds below which one thread is faster than many.
constexpr double kMinSharedWork = 10000;

constexpr std::align_val_t kAlign{64};

struct Range {
  std::uint32_t begin, end;
};

std::uint64_t PackRange(Range range) {
  return std::uint64_t{range.begin} << 32 | range.end;
}

// Takes a quarter of the remaining items from the front. Ranges are large at first, because
// sequential reads are faster. They are small at the end, because all threads wait for the last
// range. Returns an empty range if nothing is left.
Range TakeFront(std::atomic<std::uint64_t>* left) {
  std::uint64_t seen = left->load(std::memory_order_relaxed);
  for (;;) {
    const Range range = {static_cast<std::uint32_t>(seen >> 32), static_cast<std::uint32_t>(seen)};
    if (range.begin == range.end) return range;
    const std::uint32_t middle = range.begin + (range.end - range.begin + 3) / 4;
    if (left->compare_exchange_weak(seen, PackRange({middle, range.end}),
                                    std::memory_order_relaxed)) {
      return {range.begin, middle};
    }
  }
}

}  // namespace

void Workspace::Free::operator()(std::byte* p) const {
  ::operator delete[](p, kAlign);
}

std::byte* Workspace::Reserve(std::size_t bytes) {
  if (bytes > capacity_) {
    data_.reset();
    capacity_ = std::max(bytes, capacity_ + capacity_ / 2);
    data_.reset(static_cast<std::byte*>(::operator new[](capacity_, kAlign)));
  }
  return data_.get();
}

absl::string_view CpuActivationsName(CpuActivations activations) {
  constexpr absl::string_view kNames[] = {"auto", "int8", "f32", "bf16"};
  return kNames[static_cast<std::size_t>(activations)];
}

CpuActivations ResolveCpuActivations(CpuActivations activations) {
  if (activations != CpuActivations::kAuto) return activations;
  return internal::ChosenLevel() == internal::CpuLevel::kAmx ? CpuActivations::kBF16
                                                             : CpuActivations::kInt8;
}

absl::StatusOr<Backend> Backend::Create(const Device& device, ThreadPool* pool,
                                        CpuActivations activations) {
  QUIRE_CHECK(device.is_cpu() && pool != nullptr);
  Backend backend(device, pool);
  backend.activations_ = activations;
  return backend;
}

absl::StatusOr<Backend> Backend::CreateCuda(const Stream& stream, Determinism determinism,
                                            ThreadPool* pool) {
  const Device& device = stream.device();
  if (device.is_cpu() || !HasCuda()) {
    return absl::UnimplementedError(
        absl::StrCat("device ", device.name,
                     " has no CUDA kernels: this build was made without CUDA (QUIRE_CUDA)"));
  }
  Backend backend(device, pool);
  QUIRE_ASSIGN_OR_RETURN(backend.linear_workspace_,
                         DeviceBuffer::Allocate(MemoryKind::kDevice, kLinearWorkspaceBytes));
  backend.loaded_kernels_ = std::make_unique<cuda::LoadedKernels>();
  backend.cuda_ =
      CudaContext{.stream = &stream,
                  .kernels = backend.loaded_kernels_.get(),
                  .num_sms = device.num_sms,
                  .compute_capability = device.compute_capability,
                  .determinism = determinism,
                  .linear_workspace = static_cast<std::byte*>(backend.linear_workspace_.data())};
  return backend;
}

void Backend::UseCublasLt(std::shared_ptr<cuda::CublasLt> library) {
  QUIRE_CHECK(cuda_ && cuda_->determinism == Determinism::kFast && library != nullptr);
  cublaslt_ = std::move(library);
  cuda_->cublaslt = cublaslt_.get();
}

Backend::Backend(const Device& device, ThreadPool* pool)
    : device_(device),
      pool_(pool),
      workspaces_(
          std::make_unique<std::vector<Workspace>>(static_cast<std::size_t>(pool->size()) + 1)),
      shares_(std::make_unique<Share[]>(static_cast<std::size_t>(pool->size()))) {}

absl::string_view Backend::isa() const {
  return internal::ChosenIsa();
}

CpuActivations Backend::activations() const {
  return ResolveCpuActivations(activations_);
}

absl::Status SelectCpuIsa(absl::string_view isa) {
  return internal::ChooseIsa(isa);
}

std::vector<std::string> AvailableCpuIsas() {
  return internal::AvailableIsas();
}

absl::Status CheckCpuActivations(CpuActivations activations) {
  // Levels below AVX2 have no fused multiply-add, which the bits of bf16 products depend on.
  if (activations != CpuActivations::kBF16 ||
      internal::ChosenLevel() <= internal::CpuLevel::kAvx2) {
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(absl::StrCat(
      "bf16 is not available with instruction set ", internal::ChosenIsa(),
      ", because it needs the fused multiply-add of avx2 or better; use auto, int8 or f32"));
}

void Backend::ReserveWorkspaces(std::size_t bytes) const {
  for (int part = 0; part < num_threads(); ++part) workspace(part).Reserve(bytes);
}

std::int64_t Backend::scratch_bytes() const {
  std::size_t bytes = 0;
  for (const Workspace& workspace : *workspaces_) bytes += workspace.size_bytes();
  return static_cast<std::int64_t>(bytes);
}

void Backend::ParallelFor(
    std::int64_t n, double work,
    absl::FunctionRef<void(std::int64_t begin, std::int64_t end, int part)> fn,
    std::int64_t grain) const {
  if (n <= 0) return;
  QUIRE_CHECK(n < std::int64_t{1} << 32 && grain >= 1);
  const std::int64_t parts = pool_->size();
  const std::int64_t grains = (n + grain - 1) / grain;
  if (parts == 1 || grains == 1 || static_cast<double>(n) * work < kMinSharedWork) {
    fn(0, n, 0);
    return;
  }
  for (std::int64_t part = 0; part < parts; ++part) {
    shares_[static_cast<std::size_t>(part)].left.store(
        PackRange({static_cast<std::uint32_t>(grains * part / parts),
                   static_cast<std::uint32_t>(grains * (part + 1) / parts)}),
        std::memory_order_relaxed);
  }
  pool_->Run([&](int part) {
    for (std::int64_t i = 0; i < parts; ++i) {
      std::atomic<std::uint64_t>& left = shares_[static_cast<std::size_t>((part + i) % parts)].left;
      for (Range range = TakeFront(&left); range.begin < range.end; range = TakeFront(&left)) {
        fn(range.begin * grain, std::min(n, range.end * grain), part);
      }
    }
  });
}

void Backend::ParallelItems(std::int64_t n, double work,
                            absl::FunctionRef<void(std::int64_t item, int part)> fn) const {
  if (pool_->size() == 1 || n <= 1 || static_cast<double>(n) * work < kMinSharedWork) {
    for (std::int64_t item = 0; item < n; ++item) fn(item, 0);
    return;
  }
  std::atomic<std::int64_t> next{0};
  pool_->Run([&](int part) {
    for (;;) {
      const std::int64_t item = next.fetch_add(1, std::memory_order_relaxed);
      if (item >= n) return;
      fn(item, part);
    }
  });
}

}  // namespace quire::kernels
