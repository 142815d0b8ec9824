#include "models/weights/fingerprint.h"

#include <algorithm>
#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "base/keyed_hash.h"
#include "base/status.h"
#include "formats/tensors/gguf_tensors.h"
#include "formats/tensors/quantized_tensor.h"

namespace quire::models {
namespace {

// The key is fixed, not secret, so that all processes compute the same fingerprints.
constexpr HashKey kFingerprintKey{{0x7175697265206d6f, 0x64656c2066696e67, 0x65727072696e7420, 1}};

constexpr std::int64_t kWholeBytes = std::int64_t{64} << 20;
constexpr std::size_t kSampleBytes = 4096;
constexpr std::size_t kSamples = 16;

// The hashed bytes, in order. Stores views of them, and owns values that would otherwise be
// destroyed before Hash is called.
class Contents {
 public:
  void Add(std::span<const std::byte> bytes) { fragments_.push_back(bytes); }

  void AddLength(std::size_t size) {
    lengths_.push_back(size);
    Add(std::as_bytes(std::span<const std::uint64_t, 1>(&lengths_.back(), 1)));
  }

  void AddField(std::span<const std::byte> bytes) {
    AddLength(bytes.size());
    Add(bytes);
  }

  void AddText(absl::string_view text) {
    AddField(std::as_bytes(std::span<const char>(text.data(), text.size())));
  }

  void AddFactors(std::vector<float> factors) {
    factors_.push_back(std::move(factors));
    AddField(std::as_bytes(std::span<const float>(factors_.back())));
  }

  absl::Status AddFile(const formats::ModelFiles& files, absl::string_view name) {
    QUIRE_ASSIGN_OR_RETURN(formats::ModelFile file, files.Open(name));
    files_.push_back(std::move(file));
    AddField(files_.back().bytes());
    return absl::OkStatus();
  }

  Hash128 Hash() const { return KeyedHash(kFingerprintKey, fragments_); }

 private:
  std::vector<std::span<const std::byte>> fragments_;
  // Views refer to the elements, and a deque does not move its elements when it grows.
  std::deque<std::uint64_t> lengths_;
  std::deque<std::vector<float>> factors_;
  std::deque<formats::ModelFile> files_;
};

void AddSamples(Contents* contents, std::span<const std::byte> bytes) {
  if (bytes.size() <= kSamples * kSampleBytes) {
    contents->AddField(bytes);
    return;
  }
  contents->AddLength(bytes.size());
  const std::size_t last = bytes.size() - kSampleBytes;
  for (std::size_t i = 0; i < kSamples; ++i) {
    contents->Add(bytes.subspan(last / (kSamples - 1) * i, kSampleBytes));
  }
  contents->Add(bytes.subspan(last));
}

void AddTensor(Contents* contents, const formats::StoredTensor& tensor, bool whole) {
  contents->AddText(tensor.name);
  contents->AddText(tensor.type);
  contents->AddField(std::as_bytes(std::span<const std::int64_t>(tensor.shape)));
  if (whole) {
    contents->AddField(tensor.bytes);
  } else {
    AddSamples(contents, tensor.bytes);
  }
}

}  // namespace

absl::StatusOr<std::string> Fingerprint(const formats::ModelFiles& files,
                                        const Checkpoint& checkpoint, absl::string_view choices) {
  Contents contents;
  std::optional<formats::OpenedGguf> opened;
  if (!files.gguf().empty()) {
    // Hashes the header, which contains configuration and tokenizer, and the rope factors, which
    // are not among the checkpoint's tensors.
    QUIRE_ASSIGN_OR_RETURN(opened, formats::OpenGguf(files));
    const std::span<const std::byte> file = opened->file.bytes();
    contents.AddField(file.first(std::min<std::uint64_t>(opened->gguf.data_offset(), file.size())));
    for (const absl::string_view name :
         {formats::kRopeFactors, formats::kLongRopeFactors, formats::kShortRopeFactors}) {
      QUIRE_ASSIGN_OR_RETURN(std::vector<float> factors, formats::ReadRopeFactors(*opened, name));
      // Absent factors of longrope are not hashed, so that older fingerprints stay valid.
      if (factors.empty() && name != formats::kRopeFactors) continue;
      contents.AddFactors(std::move(factors));
    }
  }
  for (const char* name : {"config.json", "tokenizer.json"}) {
    contents.AddText(name);
    if (files.Has(name)) QUIRE_RETURN_IF_ERROR(contents.AddFile(files, name));
  }
  for (const char* name : {"tekken.json", "tokenizer.model", "tokenizer.tiktoken"}) {
    if (!files.Has(name)) continue;
    contents.AddText(name);
    QUIRE_RETURN_IF_ERROR(contents.AddFile(files, name));
  }
  const bool whole = checkpoint.total_bytes() <= kWholeBytes;
  for (const formats::StoredTensor& tensor : checkpoint.tensors()) {
    if (tensor.quantized == nullptr) {
      AddTensor(&contents, tensor, whole);
      continue;
    }
    for (const formats::StoredTensor* source : tensor.quantized->Sources()) {
      AddTensor(&contents, *source, whole);
    }
  }
  if (!choices.empty()) contents.AddText(choices);
  const Hash128 hash = contents.Hash();
  return absl::StrFormat("%016x%016x", hash.hi, hash.lo);
}

}  // namespace quire::models
