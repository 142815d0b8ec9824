#pragma once

// Packed weights in a file, so that the next start reads them instead of packing again.
//
//   "quirepk1"                        8 bytes
//   length of the text                u64, little endian
//   text                              version, fingerprint, quantization, a line for each section
//   a checksum of each 16 MiB piece   u64 each; sections begin new pieces
//   a checksum of all the above       u64
//   sections                          in order, each at a multiple of 4096 bytes
//
// The reader knows what the text must say, so it compares instead of parsing, and a line that
// differs says why the file does not serve. Sections are read into memory of the process rather
// than mapped: every byte is read for its checksum anyway, huge pages hold weights of the process
// only, and no other process can change or truncate them under a running model.
//
// Place:      used by LoadModel around Weights.
// Invariants: a file under its final name is whole: it is written beside it, synchronised, renamed.
// Threads:    both functions use the backend's threads. Processes may read and write one directory
//             at the same time; of several writers of a name one writes.
// Lifetime:   none.

#include <cstdint>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "kernels/backend/backend.h"
#include "models/weights/weights.h"

namespace quire::runtime {

// Of the text, of the packed forms in it and of how weights are rounded to them. Grows when one of
// them changes.
inline constexpr int kPackedFileVersion = 3;

// What the weights in a file are.
struct PackedFileKey {
  std::string fingerprint;         // Model::fingerprint
  absl::string_view quantization;  // QuantizationName
};

// "DIRECTORY/FINGERPRINT-QUANTIZATION.quirepack"
std::string PackedFilePath(absl::string_view directory, const PackedFileKey& key);

// Fills the sections. Returns NOT_FOUND when there is no such file, DATA_LOSS with the reason when
// it is another model's, another version's or damaged; then the sections hold rubbish.
absl::Status ReadPackedFile(const std::string& path, const PackedFileKey& key,
                            std::span<const models::Weights::Section> sections,
                            const kernels::Backend& backend);

// Writes or replaces the file. Returns the system's error with the path, or ABORTED when another
// process is writing it; then nothing has changed. A folder that cannot be synchronised is a
// warning: the file is there, and may be gone after the machine crashes.
absl::Status WritePackedFile(const std::string& path, const PackedFileKey& key,
                             std::span<const models::Weights::Section> sections,
                             const kernels::Backend& backend);

}  // namespace quire::runtime
