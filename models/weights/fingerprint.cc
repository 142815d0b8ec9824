#include "models/weights/fingerprint.h"

#include <algorithm>
#include <cstdint>

#include "absl/strings/str_format.h"
#include "base/keyed_hash.h"
#include "base/status.h"
#include "formats/tensors/gguf_tensors.h"
#include "formats/tensors/quantized_tensor.h"

namespace quire::models {
namespace {

// A name for content, not a secret: the key is fixed so that two processes agree.
constexpr HashKey kFingerprintKey{{0x7175697265206d6f, 0x64656c2066696e67, 0x65727072696e7420, 1}};

constexpr std::int64_t kWholeBytes = std::int64_t{64} << 20;
constexpr std::size_t kSampleBytes = 4096;
constexpr std::size_t kSamples = 16;

void AddField(KeyedHasher* hasher, std::span<const std::byte> bytes) {
  hasher->UpdateValue(static_cast<std::uint64_t>(bytes.size()));
  hasher->Update(bytes);
}

void AddText(KeyedHasher* hasher, absl::string_view text) {
  AddField(hasher, std::as_bytes(std::span<const char>(text.data(), text.size())));
}

void AddSamples(KeyedHasher* hasher, std::span<const std::byte> bytes) {
  if (bytes.size() <= kSamples * kSampleBytes) {
    AddField(hasher, bytes);
    return;
  }
  hasher->UpdateValue(static_cast<std::uint64_t>(bytes.size()));
  const std::size_t last = bytes.size() - kSampleBytes;
  for (std::size_t i = 0; i < kSamples; ++i) {
    hasher->Update(bytes.subspan(last / (kSamples - 1) * i, kSampleBytes));
  }
  hasher->Update(bytes.subspan(last));
}

void AddTensor(KeyedHasher* hasher, const StoredTensor& tensor, bool whole) {
  AddText(hasher, tensor.name);
  AddText(hasher, tensor.type);
  AddField(hasher, std::as_bytes(std::span<const std::int64_t>(tensor.shape)));
  if (whole) {
    AddField(hasher, tensor.bytes);
  } else {
    AddSamples(hasher, tensor.bytes);
  }
}

}  // namespace

absl::StatusOr<std::string> Fingerprint(const ModelFiles& files, const Checkpoint& checkpoint,
                                        absl::string_view choices) {
  KeyedHasher hasher(kFingerprintKey);
  if (!files.gguf().empty()) {
    // The header, which configuration and tokenizer come from, and what no tensor below holds.
    QUIRE_ASSIGN_OR_RETURN(const OpenedGguf opened, OpenGguf(files));
    const std::span<const std::byte> file = opened.file.bytes();
    AddField(&hasher,
             file.first(std::min<std::uint64_t>(opened.gguf.data_offset(), file.size())));
    for (const absl::string_view name : {kRopeFactors, kLongRopeFactors, kShortRopeFactors}) {
      QUIRE_ASSIGN_OR_RETURN(const std::vector<float> factors, ReadRopeFactors(opened, name));
      // Most files have none, and those of longrope came later: their absence adds nothing.
      if (factors.empty() && name != kRopeFactors) continue;
      AddField(&hasher, std::as_bytes(std::span<const float>(factors)));
    }
  }
  for (const char* name : {"config.json", "tokenizer.json"}) {
    AddText(&hasher, name);
    if (!files.Has(name)) continue;
    QUIRE_ASSIGN_OR_RETURN(const ModelFile file, files.Open(name));
    AddField(&hasher, file.bytes());
  }
  for (const char* name : {"tekken.json", "tokenizer.model", "tokenizer.tiktoken"}) {
    if (!files.Has(name)) continue;
    AddText(&hasher, name);
    QUIRE_ASSIGN_OR_RETURN(const ModelFile file, files.Open(name));
    AddField(&hasher, file.bytes());
  }
  const bool whole = checkpoint.total_bytes() <= kWholeBytes;
  for (const StoredTensor& tensor : checkpoint.tensors()) {
    if (tensor.quantized == nullptr) {
      AddTensor(&hasher, tensor, whole);
      continue;
    }
    for (const StoredTensor* source : tensor.quantized->Sources()) {
      AddTensor(&hasher, *source, whole);
    }
  }
  if (!choices.empty()) AddText(&hasher, choices);
  const Hash128 hash = hasher.Finish();
  return absl::StrFormat("%016x%016x", hash.hi, hash.lo);
}

}  // namespace quire::models
