#pragma once

// Stores packed weights in a file, so that the next start reads them instead of packing again.
//
//   "quirepk1"                        8 bytes
//   length of the text                u64, little endian
//   text                              version, fingerprint, quantization, a line for each section
//   a checksum of each 16 MiB piece   u64 each; sections begin new pieces
//   a checksum of all the above       u64
//   sections                          in order, each at a multiple of 4096 bytes
//
// The reader compares the text with the expected text instead of parsing it. An error quotes the
// first line that differs. Sections are read instead of mapped, because the checksum needs every
// byte anyway, and memory that is not mapped from a file can use huge pages. In addition, no other
// process can change or truncate the weights of a running model.
//
// Place:      used by LoadModel around Weights.
// Invariants: a file with its final name is complete, because it is written under another name,
//             synchronized and renamed.
// Threads:    both functions use the backend's threads. Processes may read and write one directory
//             at the same time. If several processes write the same file at the same time, only one
//             of them succeeds.

#include <span>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "kernels/backend/backend.h"
#include "models/weights/weights.h"

namespace quire::runtime {

// Version of the text, the packed weight formats, the rounding of weights and the order of the
// vectors in memory. Incremented when any of these changes.
inline constexpr int kPackedFileVersion = 7;

// Identifies the weights in a file.
struct PackedFileKey {
  std::string fingerprint;         // Model::fingerprint
  absl::string_view quantization;  // QuantizationName
};

// Returns "DIRECTORY/FINGERPRINT-QUANTIZATION.quirepack".
std::string PackedFilePath(absl::string_view directory, const PackedFileKey& key);

// Fills the sections. Returns NOT_FOUND if there is no such file. Returns DATA_LOSS with the reason
// if the file was written for another model or version, or is damaged. The contents of the sections
// are then undefined.
absl::Status ReadPackedFile(const std::string& path, const PackedFileKey& key,
                            std::span<const models::Weights::Section> sections,
                            const kernels::Backend& backend);

// Writes or replaces the file. Returns the system's error with the path, or ABORTED if another
// process is writing it; the file is then unchanged. If the folder cannot be synchronized, a
// warning is logged, because the file may be lost when the machine crashes.
absl::Status WritePackedFile(const std::string& path, const PackedFileKey& key,
                             std::span<const models::Weights::Section> sections,
                             const kernels::Backend& backend);

}  // namespace quire::runtime
