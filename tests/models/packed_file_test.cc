// Tests of the file that keeps packed weights between starts.

#include "runtime/packed_file.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/logging.h"
#include "kernels/linear/bf16_linear.h"
#include "runtime/model.h"
#include "tests/models/test_files.h"

namespace quire::models {
namespace {

using testing::HasSubstr;

std::string ReadWhole(const std::string& path) {
  std::ifstream stream(path, std::ios::binary);
  std::ostringstream text;
  text << stream.rdbuf();
  return text.str();
}

void WriteWhole(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

class PackedFileTest : public testing::Test {
 protected:
  PackedFileTest()
      : directory_(absl::StrCat(testing::TempDir(), "/packed_file_", getpid(), "_",
                                testing::UnitTest::GetInstance()->current_test_info()->name())) {
    std::filesystem::remove_all(directory_);
    std::filesystem::create_directories(directory_ + "/weights");
    EXPECT_TRUE(log::Configure({.file = directory_ + "/log"}).ok());
  }
  ~PackedFileTest() override {
    EXPECT_TRUE(log::Configure({}).ok());
    std::filesystem::permissions(packed_dir(), std::filesystem::perms::owner_all);
    std::filesystem::remove_all(directory_);
  }

  std::string packed_dir() const { return directory_ + "/weights"; }

  std::unique_ptr<runtime::Model> Load(const std::string& folder, Quantization quantization) {
    auto model = runtime::LoadModel(TestDataPath("models/" + folder), cpu_.backend,
                                    {.quantization = quantization, .packed_dir = packed_dir()});
    EXPECT_TRUE(model.ok()) << model.status();
    return *std::move(model);
  }
  std::unique_ptr<runtime::Model> Load() { return Load("llama-bias-bf16", Quantization::kInt4G32); }

  static std::string PathOf(const std::string& directory, const runtime::Model& model) {
    return runtime::PackedFilePath(directory, {model.fingerprint, model.quantization});
  }

  // Returns the lines of the log since the last call.
  std::string TakeLog() {
    EXPECT_TRUE(log::Flush(absl::Seconds(20)));
    const std::string all = ReadWhole(directory_ + "/log");
    const std::string fresh = all.substr(log_read_);
    log_read_ = all.size();
    return fresh;
  }

  static std::size_t CountOf(const std::string& text, const std::string& what) {
    std::size_t count = 0;
    for (std::size_t at = 0; (at = text.find(what, at)) != text.npos; at += what.size()) ++count;
    return count;
  }

  static void ExpectSameWeights(const runtime::Model& a, const runtime::Model& b) {
    const auto left = a.weights->Sections();
    const auto right = b.weights->Sections();
    ASSERT_EQ(left.size(), right.size());
    for (std::size_t i = 0; i < left.size(); ++i) {
      EXPECT_EQ(left[i].label, right[i].label);
      ASSERT_EQ(left[i].bytes.size(), right[i].bytes.size());
      EXPECT_EQ(std::memcmp(left[i].bytes.data(), right[i].bytes.data(), left[i].bytes.size()), 0)
          << left[i].label;
    }
    for (std::size_t i = 0; i < a.weights->layers().size(); ++i) {
      const LayerWeights& x = a.weights->layers()[i];
      const LayerWeights& y = b.weights->layers()[i];
      EXPECT_EQ(x.attn_in[1], y.attn_in[1]);
      EXPECT_EQ(x.mlp_in[1], y.mlp_in[1]);
      ASSERT_EQ(x.qkv.bias == nullptr, y.qkv.bias == nullptr);
      if (x.qkv.bias == nullptr) continue;
      EXPECT_EQ(x.qkv.bias[5], y.qkv.bias[5]);
    }
    EXPECT_EQ(a.weights->final_norm()[3], b.weights->final_norm()[3]);
  }

  // Expects that the log names the error of the file, and that the file is rewritten once.
  void ExpectMadeAgain(const runtime::Model& first, const std::string& why) {
    const std::string path = PathOf(packed_dir(), first);
    TakeLog();
    const auto model = Load();
    const std::string lines = TakeLog();
    EXPECT_THAT(lines, HasSubstr(why));
    EXPECT_EQ(CountOf(lines, "packed weights cannot be read and are packed again"), 1u);
    EXPECT_EQ(CountOf(lines, "weights packed"), 1u);
    ExpectSameWeights(first, *model);
    Load();
    EXPECT_THAT(TakeLog(), HasSubstr("packed weights read"));
  }

  TestBackend cpu_{2};
  const std::string directory_;
  std::size_t log_read_ = 0;
};

TEST_F(PackedFileTest, TheSecondStartReadsWhatTheFirstPacked) {
  for (const char* folder : {"llama-bias-bf16", "llama-mha-f32", "llama-untied-f16"}) {
    for (const Quantization quantization :
         {Quantization::kNone, Quantization::kInt8, Quantization::kInt4G32}) {
      SCOPED_TRACE(absl::StrCat(folder, " ", QuantizationName(quantization)));
      TakeLog();
      const auto first = Load(folder, quantization);
      EXPECT_THAT(TakeLog(),
                  testing::AllOf(HasSubstr("weights packed"), HasSubstr("packed weights written")));
      const auto second = Load(folder, quantization);
      EXPECT_THAT(TakeLog(), testing::AllOf(HasSubstr("packed weights read"),
                                            testing::Not(HasSubstr("weights packed"))));
      ExpectSameWeights(*first, *second);
      EXPECT_EQ(first->weight_bytes, second->weights->size_bytes());
    }
  }
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(packed_dir()),
                          std::filesystem::directory_iterator()),
            9);
}

TEST_F(PackedFileTest, FileOfAnotherModelIsRewritten) {
  const auto other = Load("llama-theta500k-multieos-bf16", Quantization::kInt4G32);
  const auto model = Load();
  std::filesystem::copy_file(PathOf(packed_dir(), *other), PathOf(packed_dir(), *model),
                             std::filesystem::copy_options::overwrite_existing);
  ExpectMadeAgain(*model, absl::StrCat("fingerprint ", other->fingerprint));
}

// Matrices of bf16 may have another layout for bf16 activations (kernels/linear/packed_linear.h).
TEST_F(PackedFileTest, FileOfAnotherLayoutIsRewritten) {
  const TestBackend bf16(2, kernels::CpuActivations::kBF16);
  const auto load = [&](const TestBackend& cpu) {
    auto model = runtime::LoadModel(TestDataPath("models/llama-bias-bf16"), cpu.backend,
                                    {.packed_dir = packed_dir()});
    EXPECT_TRUE(model.ok()) << model.status();
    return *std::move(model);
  };
  const bool layout_differs =
      kernels::internal::NeedsOrderedRows(kernels::internal::ChosenBf16Multiply());
  const auto first = load(cpu_);
  TakeLog();
  const auto second = load(bf16);
  EXPECT_EQ(CountOf(TakeLog(), "packed weights cannot be read and are packed again"),
            layout_differs ? 1u : 0u);
  const auto is_ordered = [](const Weights::Section& section) {
    return absl::StrContains(section.label, " ordered ");
  };
  const auto sections = second->weights->Sections();
  EXPECT_EQ(std::any_of(sections.begin(), sections.end(), is_ordered), layout_differs);
  const auto third = load(bf16);
  EXPECT_THAT(TakeLog(), HasSubstr("packed weights read"));
  ExpectSameWeights(*second, *third);
  ExpectSameWeights(*first, *load(cpu_));
}

TEST_F(PackedFileTest, DamagedFilesAreRewritten) {
  const auto model = Load();
  const std::string path = PathOf(packed_dir(), *model);
  const std::string good = ReadWhole(path);
  const std::size_t text = 16;
  const auto changed = [&](std::size_t at, char value) {
    std::string bytes = good;
    EXPECT_NE(bytes[at], value);
    bytes[at] = value;
    return bytes;
  };
  std::uint64_t text_bytes = 0;
  std::memcpy(&text_bytes, good.data() + 8, 8);
  const std::pair<std::string, std::string> cases[] = {
      {"is not a file of packed weights", changed(0, 'Q')},
      {"is not a file of packed weights", changed(15, '\x7f')},
      {"version 8", changed(text + 8, '8')},
      {"bytes, expected", good.substr(0, good.size() - 1)},
      {"bytes, expected", good + "x"},
      {"ends at byte", good.substr(0, 300)},
      {"ends at byte 0", ""},
      {"the checksum of the head does not match",
       changed(text + text_bytes + 3, static_cast<char>(good[text + text_bytes + 3] ^ 1))},
      {"the checksum of head int8_g32 [384, 128] scales does not match",
       changed(good.size() - 1, static_cast<char>(good[good.size() - 1] ^ 0x40))},
      {"the checksum of embedding bf16 does not match",
       changed(8192, static_cast<char>(good[8192] ^ 1))},
  };
  for (const auto& [why, bytes] : cases) {
    SCOPED_TRACE(why);
    WriteWhole(path, bytes);
    ExpectMadeAgain(*model, why);
    EXPECT_EQ(ReadWhole(path), good);
  }
}

// Nothing writes to the FIFO, so an open that waits would never return.
TEST_F(PackedFileTest, FifoIsRejectedWithoutWaiting) {
  const auto model = Load();
  const std::string path = PathOf(packed_dir(), *model);
  std::filesystem::remove(path);
  ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
  EXPECT_THAT(std::string(runtime::ReadPackedFile(path, {model->fingerprint, "int8"},
                                                  model->weights->Sections(), cpu_.backend)
                              .message()),
              HasSubstr(path));
}

TEST_F(PackedFileTest, UnwritableDirectoryCausesOneWarning) {
  std::filesystem::remove_all(packed_dir());
  TakeLog();
  const auto model = Load();
  const std::string lines = TakeLog();
  EXPECT_EQ(CountOf(lines, "packed weights are not kept"), 1u) << lines;
  EXPECT_THAT(lines, HasSubstr(absl::StrCat(PathOf(packed_dir(), *model), ".tmp: cannot create")));
  std::filesystem::create_directories(packed_dir());
}

TEST_F(PackedFileTest, FailedWriteLeavesNoTemporaryFile) {
  const auto model = Load("llama-mha-f32", Quantization::kInt8);
  const runtime::PackedFileKey key{"f", "int8"};
  const std::string path = runtime::PackedFilePath(packed_dir(), key);
  std::filesystem::create_directories(path + "/in_the_way");  // the rename fails
  const absl::Status status =
      runtime::WritePackedFile(path, key, model->weights->Sections(), cpu_.backend);
  EXPECT_THAT(std::string(status.message()), HasSubstr("cannot rename"));
  EXPECT_FALSE(std::filesystem::exists(path + ".tmp"));
}

// A folder without read permission can be written to but not opened, so it cannot be synced.
TEST_F(PackedFileTest, FailedSyncOfTheFolderIsAWarningAndTheFileIsKept) {
  const auto model = Load("llama-mha-f32", Quantization::kInt8);
  const runtime::PackedFileKey key{"f", "int8"};
  const std::string path = runtime::PackedFilePath(packed_dir(), key);
  const uid_t user = geteuid();
  constexpr uid_t kNobody = 65534;
  std::filesystem::permissions(
      packed_dir(), std::filesystem::perms::owner_write | std::filesystem::perms::owner_exec);
  if (user == 0) {  // root may read every folder
    ASSERT_EQ(chown(packed_dir().c_str(), kNobody, static_cast<gid_t>(-1)), 0);
    ASSERT_EQ(seteuid(kNobody), 0);
  }
  TakeLog();
  const absl::Status status =
      runtime::WritePackedFile(path, key, model->weights->Sections(), cpu_.backend);
  ASSERT_EQ(seteuid(user), 0);
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_THAT(TakeLog(), HasSubstr("packed weights were written, but a crash may lose them"));
  EXPECT_TRUE(runtime::ReadPackedFile(path, key, model->weights->Sections(), cpu_.backend).ok());
}

TEST_F(PackedFileTest, OnlyOneOfSeveralWritersWrites) {
  const auto model = Load("llama-mha-f32", Quantization::kInt8);
  const runtime::PackedFileKey key{"f", "int8"};
  const std::string path = runtime::PackedFilePath(packed_dir(), key);
  const int fd = open((path + ".tmp").c_str(), O_RDWR | O_CREAT, 0644);
  ASSERT_EQ(flock(fd, LOCK_EX), 0);
  EXPECT_TRUE(absl::IsAborted(
      runtime::WritePackedFile(path, key, model->weights->Sections(), cpu_.backend)));
  close(fd);
  // A temporary file that a crashed process left does not prevent the write.
  WriteWhole(path + ".tmp", std::string(1 << 20, 'x'));
  EXPECT_TRUE(runtime::WritePackedFile(path, key, model->weights->Sections(), cpu_.backend).ok());
  EXPECT_TRUE(runtime::ReadPackedFile(path, key, model->weights->Sections(), cpu_.backend).ok());
  EXPECT_FALSE(std::filesystem::exists(path + ".tmp"));
}

TEST_F(PackedFileTest, ConcurrentStartsLoadEqualWeights) {
  const auto expected = runtime::LoadModel(TestDataPath("models/llama-bias-bf16"), cpu_.backend,
                                           {.quantization = Quantization::kInt4G32});
  ASSERT_TRUE(expected.ok());
  for (int round = 0; round < 5; ++round) {
    std::filesystem::remove_all(packed_dir());
    std::filesystem::create_directories(packed_dir());
    std::vector<std::unique_ptr<runtime::Model>> models(6);
    std::vector<std::thread> starts;
    for (std::unique_ptr<runtime::Model>& model : models) {
      starts.emplace_back([&] {
        const TestBackend own;
        auto loaded = runtime::LoadModel(
            TestDataPath("models/llama-bias-bf16"), own.backend,
            {.quantization = Quantization::kInt4G32, .packed_dir = packed_dir()});
        ASSERT_TRUE(loaded.ok()) << loaded.status();
        model = *std::move(loaded);
      });
    }
    for (std::thread& start : starts) start.join();
    for (const auto& model : models) ExpectSameWeights(**expected, *model);
    const runtime::PackedFileKey key{(*expected)->fingerprint, "int4_g32"};
    EXPECT_TRUE(std::filesystem::exists(runtime::PackedFilePath(packed_dir(), key)));
    EXPECT_FALSE(std::filesystem::exists(runtime::PackedFilePath(packed_dir(), key) + ".tmp"));
  }
  EXPECT_THAT(TakeLog(), testing::Not(HasSubstr("made again")));
}

}  // namespace
}  // namespace quire::models
