// Runs a fuzz target without libFuzzer: every file of a corpus unchanged, then random mutations
// until the time is over.
//
//   TARGET [-seconds=N] [-runs=N] [-seed=N] FILE|FOLDER...
//
// Without -seconds and -runs it runs the files only, which reproduces a found input. The current
// input is stored in TARGET.input in the current folder, so that a crash leaves it there. The file
// is removed after success. The driver has no coverage feedback. Use clang's libFuzzer
// (scripts/fuzz) for long runs.

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/strip.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "tests/fuzz/fuzz_target.h"

namespace quire::fuzz {
namespace {

constexpr std::size_t kMaxInputBytes = std::size_t{64} << 10;
constexpr unsigned kMaxSecondsOfARun = 20;  // a hang counts as a crash; generous for sanitizers
constexpr std::int64_t kMaxResidentBytes = std::int64_t{2} << 30;

struct Options {
  std::int64_t seconds = 0;
  std::int64_t runs = 0;  // 0 means as many as the time allows
  std::uint64_t seed = std::random_device()();
  std::vector<std::string> paths;
};

[[noreturn]] void Fail(const std::string& why) {
  std::fprintf(stderr, "%s\n", why.c_str());
  std::exit(2);
}

Options ReadOptions(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    absl::string_view word = argv[i];
    bool is_number = true;
    if (absl::ConsumePrefix(&word, "-seconds=")) {
      is_number = absl::SimpleAtoi(word, &options.seconds);
    } else if (absl::ConsumePrefix(&word, "-runs=")) {
      is_number = absl::SimpleAtoi(word, &options.runs);
    } else if (absl::ConsumePrefix(&word, "-seed=")) {
      is_number = absl::SimpleAtoi(word, &options.seed);
    } else if (word.substr(0, 1) == "-") {
      Fail(absl::StrCat(word, " is not one of -seconds=N, -runs=N, -seed=N"));
    } else {
      options.paths.emplace_back(word);
    }
    if (!is_number) Fail(absl::StrCat(argv[i], " is not a number"));
  }
  return options;
}

std::string ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) Fail(absl::StrCat(path, ": cannot be read"));
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

// Returns the contents of all files in the order of their names, which makes a seed reproducible.
std::vector<std::string> ReadCorpus(const std::vector<std::string>& paths) {
  std::vector<std::string> names;
  for (const std::string& path : paths) {
    if (!std::filesystem::is_directory(path)) {
      names.push_back(path);
      continue;
    }
    for (const auto& entry : std::filesystem::recursive_directory_iterator(path)) {
      if (entry.is_regular_file()) names.push_back(entry.path().string());
    }
  }
  std::sort(names.begin(), names.end());
  std::vector<std::string> corpus;
  for (const std::string& name : names) {
    corpus.push_back(ReadFile(name));
    if (corpus.back().size() > kMaxInputBytes) {
      Fail(absl::StrCat(name, ": has more than ", kMaxInputBytes, " bytes"));
    }
  }
  if (corpus.empty()) Fail("there is no file to begin with");
  return corpus;
}

// Derives inputs from those of the corpus.
class Mutator {
 public:
  Mutator(const std::vector<std::string>* corpus, std::uint64_t seed)
      : corpus_(*corpus), random_(seed) {}

  std::string Next() {
    std::string input = Any();
    for (std::size_t edits = 1 + Below(5); edits > 0; --edits) Edit(&input);
    if (input.size() > kMaxInputBytes) input.resize(kMaxInputBytes);
    return input;
  }

 private:
  // Returns a number below `n`, or 0 if `n` is 0.
  std::size_t Below(std::size_t n) { return n == 0 ? 0 : random_() % n; }
  const std::string& Any() { return corpus_[Below(corpus_.size())]; }
  // Returns a few bytes, seldom many.
  std::size_t Length() { return 1 + Below(Below(8) == 0 ? 512 : 12); }

  std::string PartOfAny() {
    const std::string& other = Any();
    return other.substr(Below(other.size()), Length());
  }

  void Edit(std::string* input) {
    const std::size_t at = Below(input->size() + 1);
    switch (Below(9)) {
      case 0:
        input->erase(at, Length());
        return;
      case 1:
        input->insert(at, input->substr(Below(input->size()), Length()));
        return;
      case 2:
        input->insert(at, PartOfAny());
        return;
      case 3:
        input->replace(at, Length(), PartOfAny());
        return;
      case 4:
        input->insert(at, Length(), static_cast<char>(random_()));
        return;
      case 5:
        return ReplaceDigits(input, at);
      case 6:
        return OverwriteInteger(input, at);
      default:
        if (at == input->size()) return;
        (*input)[at] = static_cast<char>(
            Below(2) == 0 ? random_() : static_cast<unsigned char>((*input)[at]) ^ 1u << Below(8));
        return;
    }
  }

  // Replaces a number in text, the next one after `at`.
  void ReplaceDigits(std::string* input, std::size_t at) {
    static constexpr const char* kNumbers[] = {
        "0",          "-1",         "-0",          "1",
        "255",        "65536",      "2147483647",  "2147483648",
        "4294967295", "4294967296", "-2147483648", "9223372036854775807",
        "1e999",      "0.5",        "1e-320",      "18446744073709551616",
        "nan",        "64GiB"};
    const std::size_t begin = input->find_first_of("0123456789", at);
    if (begin == std::string::npos) return;
    const std::size_t end = input->find_first_not_of("0123456789", begin);
    input->replace(begin, std::min(end, input->size()) - begin,
                   kNumbers[Below(std::size(kNumbers))]);
  }

  // Overwrites a binary number, little endian, of 1, 2, 4 or 8 bytes.
  void OverwriteInteger(std::string* input, std::size_t at) {
    const std::size_t bytes = std::size_t{1} << Below(4);
    std::uint64_t value = std::numeric_limits<std::uint64_t>::max() >> Below(64);
    if (Below(2) == 0) value = Below(300);
    value += Below(3) - 1;
    for (std::size_t i = 0; i < bytes && at + i < input->size(); ++i) {
      (*input)[at + i] = static_cast<char>(value >> (8 * i));
    }
  }

  const std::vector<std::string>& corpus_;
  std::mt19937_64 random_;
};

// Runs inputs. Each is stored in a file while it runs.
class Runner {
 public:
  explicit Runner(const std::string& file) : file_(file) {
    fd_ = open(file.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (fd_ < 0) Fail(absl::StrCat(file, ": cannot be written"));
  }

  void Run(const std::string& input) {
    if (pwrite(fd_, input.data(), input.size(), 0) != static_cast<ssize_t>(input.size()) ||
        ftruncate(fd_, static_cast<off_t>(input.size())) != 0) {
      Fail(absl::StrCat(file_, ": cannot be written"));
    }
    // The memory has exactly the input's size, so that a sanitizer detects reads after its end.
    const std::vector<std::uint8_t> bytes(input.begin(), input.end());
    alarm(kMaxSecondsOfARun);
    LLVMFuzzerTestOneInput(bytes.data(), bytes.size());
    alarm(0);
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    if (usage.ru_maxrss > kMaxResidentBytes / 1024) {
      std::fprintf(stderr, "the process takes %ld KiB, at most %lld are allowed\n", usage.ru_maxrss,
                   static_cast<long long>(kMaxResidentBytes / 1024));
      std::abort();
    }
    ++runs_;
  }

  void RemoveFile() const {
    close(fd_);
    unlink(file_.c_str());
  }
  std::int64_t runs() const { return runs_; }

 private:
  const std::string file_;
  int fd_ = -1;
  std::int64_t runs_ = 0;
};

int Main(int argc, char** argv) {
  const Options options = ReadOptions(argc, argv);
  const std::string name = std::filesystem::path(argv[0]).filename().string();
  const std::vector<std::string> corpus = ReadCorpus(options.paths);
  std::printf("%s: seed %llu, %zu files; the input under way is in %s.input\n", name.c_str(),
              static_cast<unsigned long long>(options.seed), corpus.size(), name.c_str());
  std::fflush(stdout);

  Runner runner(absl::StrCat(name, ".input"));
  const absl::Time start = MonotonicNow();
  for (const std::string& input : corpus) runner.Run(input);
  Mutator mutator(&corpus, options.seed);
  const absl::Time end = start + absl::Seconds(options.seconds);
  const bool has_end = options.seconds > 0 || options.runs > 0;
  for (std::int64_t i = 0; has_end && (options.runs == 0 || i < options.runs); ++i) {
    if (options.seconds > 0 && MonotonicNow() >= end) break;
    runner.Run(mutator.Next());
  }
  runner.RemoveFile();
  std::printf(
      "%s: %lld runs in %s, none failed\n", name.c_str(), static_cast<long long>(runner.runs()),
      absl::FormatDuration(absl::Trunc(MonotonicNow() - start, absl::Milliseconds(1))).c_str());
  return 0;
}

}  // namespace
}  // namespace quire::fuzz

int main(int argc, char** argv) {
  return quire::fuzz::Main(argc, argv);
}
