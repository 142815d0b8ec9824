// A reader with an injected fault, for driver_test.py. It aborts at a number above 1000.

#include <cstdlib>

#include "absl/strings/numbers.h"
#include "tests/fuzz/fuzz_target.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  int number = 0;
  if (absl::SimpleAtoi(quire::fuzz::AsText(data, size), &number) && number > 1000) std::abort();
  return 0;
}
