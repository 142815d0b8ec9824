// Writes a model fixture as a GGUF file for tests of programs:
//
//   write_gguf FOLDER ARCHITECTURE FILE
//
// Matrices are BF16. FOLDER is a name under tests/testdata/models.

#include <cstdio>
#include <fstream>
#include <string>

#include "tests/parity/edited_fixture.h"
#include "tests/parity/gguf_conversion.h"

int main(int argc, char** argv) {
  if (argc != 4) {
    std::fprintf(stderr, "usage: write_gguf FOLDER ARCHITECTURE FILE\n");
    return 2;
  }
  quire::models::parity::EditedFixture fixture(argv[1]);
  const std::string file =
      quire::models::parity::ConvertToGguf(
          fixture, argv[2], {.type = quire::formats::GgmlType::kBF16, .has_tokenizer = true})
          .File();
  std::ofstream stream(argv[3], std::ios::binary);
  stream << file;
  stream.close();
  return stream.good() ? 0 : 1;
}
