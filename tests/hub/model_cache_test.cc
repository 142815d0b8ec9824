#include "hub/cache/model_cache.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <optional>
#include <random>

#include "absl/strings/str_cat.h"
#include "hub/cache/cache_dir.h"
#include "hub/cache/file_lock.h"
#include "tests/testing/temp_dir.h"

namespace quire::hub {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

const std::string kOne(40, '1');
const std::string kTwo(40, '2');

std::string Message(const absl::Status& status) {
  return std::string(status.message());
}

class ModelCacheTest : public ::testing::Test {
 protected:
  // Publishes files whose blobs have as many bytes as their name. Equal names share a blob.
  void Publish(const std::string& repository, const std::string& revision,
               const std::string& commit, const std::vector<std::string>& names) {
    std::vector<CachedFile> files;
    for (const std::string& name : names) {
      std::string hash = absl::StrCat(absl::Hex(std::hash<std::string>()(name)));
      hash.resize(64, 'e');
      fs::create_directories(fs::path(cache_.BlobPath(repository, hash)).parent_path());
      std::ofstream(cache_.BlobPath(repository, hash)) << name;
      files.push_back({name, hash});
    }
    ASSERT_TRUE(cache_.Publish(repository, revision, commit, files).ok());
    ASSERT_TRUE(cache_.CheckIntegrity(repository).ok()) << cache_.CheckIntegrity(repository);
  }

  std::vector<std::string> Names() {
    std::vector<std::string> names;
    const auto models = cache_.List();
    EXPECT_TRUE(models.ok());
    for (const CachedModel& model : *models) {
      names.push_back(absl::StrCat(model.name(), " ", model.revision, " ", model.format));
    }
    return names;
  }

  std::string Snapshot(const std::string& commit) { return cache_.SnapshotDir("org/name", commit); }

  testing::TempDir dir_;
  ModelCache cache_{dir_.path() + "/hub"};
};

TEST_F(ModelCacheTest, HasTheLayoutOfHuggingfaceHub) {
  Publish("org/name", "main", kOne, {"config.json", "model.safetensors", "1_Pooling/config.json"});
  const fs::path root = fs::path(dir_.path()) / "hub" / "models--org--name";
  EXPECT_EQ(dir_.path() + "/hub/models--org--name", cache_.RepositoryDir("org/name"));
  std::string ref;
  std::ifstream(root / "refs" / "main") >> ref;
  EXPECT_EQ(ref, kOne);
  EXPECT_EQ(fs::file_size(root / "refs" / "main"), 40U);
  EXPECT_EQ(fs::read_symlink(root / "snapshots" / kOne / "config.json").parent_path(),
            "../../blobs");
  EXPECT_EQ(fs::read_symlink(root / "snapshots" / kOne / "1_Pooling/config.json").parent_path(),
            "../../../blobs");
  std::string content;
  std::ifstream(root / "snapshots" / kOne / "1_Pooling/config.json") >> content;
  EXPECT_EQ(content, "1_Pooling/config.json");
  EXPECT_EQ(cache_.LockPath("org/name", "x.lock"),
            dir_.path() + "/hub/.locks/models--org--name/x.lock");
}

TEST_F(ModelCacheTest, FindsARevision) {
  Publish("org/name", "main", kOne, {"config.json", "model.safetensors"});
  Publish("org/name", "refs/pr/1", kTwo, {"config.json", "model.safetensors"});
  EXPECT_EQ(cache_.Find({"org/name", "", ""}).value(), Snapshot(kOne));
  EXPECT_EQ(cache_.Find({"org/name", kOne, ""}).value(), Snapshot(kOne));
  EXPECT_EQ(cache_.Find({"org/name", "refs/pr/1", ""}).value(), Snapshot(kTwo));
  Publish("org/name", "main", kTwo, {"config.json", "model.safetensors"});
  EXPECT_EQ(cache_.Find({"org/name", "", ""}).value(), Snapshot(kTwo));
}

TEST_F(ModelCacheTest, ReportsTheCommandForAMissingModel) {
  EXPECT_EQ(Message(cache_.Find({"org/name", "", ""}).status()),
            "org/name was not pulled; run: quire pull org/name");
  Publish("org/name", "v1", kOne, {"config.json", "model.safetensors"});
  EXPECT_EQ(Message(cache_.Find({"org/name", "", ""}).status()),
            "org/name was not pulled; run: quire pull org/name; the cache has the revisions v1");
  EXPECT_EQ(Message(cache_.Find({"org/name", "v1", "m.gguf"}).status()),
            "org/name@v1:m.gguf was not pulled; run: quire pull org/name@v1 --gguf m.gguf");
}

TEST_F(ModelCacheTest, DoesNotFindAnIncompleteModel) {
  Publish("org/name", "main", kOne, {"config.json", "tokenizer.json"});
  EXPECT_TRUE(absl::IsNotFound(cache_.Find({"org/name", "", ""}).status()));
  Publish("org/name", "main", kOne, {"model.safetensors"});
  EXPECT_TRUE(cache_.Find({"org/name", "", ""}).ok());
  const fs::path link = fs::path(Snapshot(kOne)) / "model.safetensors";
  fs::remove(link.parent_path() / fs::read_symlink(link));
  EXPECT_TRUE(absl::IsNotFound(cache_.Find({"org/name", "", ""}).status()));
  EXPECT_TRUE(absl::IsInternal(cache_.CheckIntegrity("org/name")));
}

TEST_F(ModelCacheTest, ChoosesAGgufFile) {
  Publish("org/name", "main", kOne, {"a.gguf"});
  EXPECT_EQ(cache_.Find({"org/name", "", ""}).value(), Snapshot(kOne) + "/a.gguf");
  Publish("org/name", "main", kOne, {"b-00001-of-00002.gguf", "b-00002-of-00002.gguf"});
  const absl::Status several = cache_.Find({"org/name", "", ""}).status();
  EXPECT_TRUE(absl::IsInvalidArgument(several));
  EXPECT_THAT(Message(several), HasSubstr("org/name:a.gguf, org/name:b-00001-of-00002.gguf"));
  EXPECT_EQ(cache_.Find({"org/name", "", "b-00001-of-00002.gguf"}).value(),
            Snapshot(kOne) + "/b-00001-of-00002.gguf");
  EXPECT_THAT(Names(),
              ElementsAre("org/name:a.gguf main gguf", "org/name:b-00001-of-00002.gguf main gguf"));
}

TEST_F(ModelCacheTest, ListsModelsWithTheirSizes) {
  EXPECT_THAT(Names(), ElementsAre());
  Publish("b/two", "main", kOne, {"x.gguf", "model.safetensors"});
  Publish("a/one", "v1", kTwo, {"config.json"});
  Publish("a/one", "main", kOne, {"config.json", "model.safetensors"});
  fs::create_directories(cache_.RepositoryDir("c/three") + "/snapshots");
  fs::create_directories(cache_.root() + "/datasets--d--four/snapshots");
  dir_.Write("hub/models--c--three/blobs/abc.incomplete", "12345");
  EXPECT_THAT(Names(),
              ElementsAre("a/one main safetensors", "a/one v1 other", "b/two main safetensors",
                          "b/two:x.gguf main gguf", "c/three  incomplete"));
  const auto models = cache_.List();
  EXPECT_EQ((*models)[0].size_bytes, 11 + 17);  // the lengths of the names
  EXPECT_EQ((*models)[0].path, cache_.SnapshotDir("a/one", kOne));
  EXPECT_GT((*models)[0].last_used, absl::UnixEpoch());
  EXPECT_EQ((*models)[3].size_bytes, 6);
  EXPECT_EQ((*models)[4].size_bytes, 5);
}

TEST_F(ModelCacheTest, RemovesOneRevisionAndKeepsSharedBlobs) {
  Publish("org/name", "main", kOne, {"config.json", "model.safetensors"});
  Publish("org/name", "v2", kTwo, {"config.json", "model-2.safetensors"});
  EXPECT_EQ(cache_.Remove({"org/name", "v2", ""}).value(), 19);
  EXPECT_TRUE(cache_.CheckIntegrity("org/name").ok());
  EXPECT_TRUE(cache_.Find({"org/name", "", ""}).ok());
  EXPECT_TRUE(absl::IsNotFound(cache_.Find({"org/name", "v2", ""}).status()));
  EXPECT_TRUE(absl::IsNotFound(cache_.Remove({"org/name", "v2", ""}).status()));
  EXPECT_EQ(cache_.Remove({"org/name", kOne, ""}).value(), 11 + 17 + 40);  // with refs/main
  EXPECT_FALSE(fs::exists(cache_.RepositoryDir("org/name")));
}

TEST_F(ModelCacheTest, RemovesAGgufFileWithItsShards) {
  Publish("org/name", "main", kOne, {"a.gguf", "b-00001-of-00002.gguf", "b-00002-of-00002.gguf"});
  EXPECT_TRUE(absl::IsNotFound(cache_.Remove({"org/name", "", "c.gguf"}).status()));
  EXPECT_EQ(cache_.Remove({"org/name", "", "b-00001-of-00002.gguf"}).value(), 42);
  EXPECT_TRUE(cache_.CheckIntegrity("org/name").ok());
  EXPECT_THAT(Names(), ElementsAre("org/name:a.gguf main gguf"));
  EXPECT_TRUE(cache_.Remove({"org/name", "", "a.gguf"}).ok());
  EXPECT_FALSE(fs::exists(cache_.RepositoryDir("org/name")));
}

TEST_F(ModelCacheTest, RefusesToRemoveWhatIsNotThere) {
  EXPECT_THAT(Message(cache_.Remove({"org/name", "", ""}).status()), HasSubstr("no models"));
  Publish("a/one", "main", kOne, {"a.gguf"});
  Publish("b/two", "main", kOne, {"a.gguf"});
  EXPECT_THAT(Message(cache_.Remove({"org/name", "", ""}).status()),
              HasSubstr("it has a/one, b/two"));
}

TEST_F(ModelCacheTest, DoesNotRemoveDuringADownload) {
  Publish("org/name", "main", kOne, {"a.gguf"});
  {
    const auto lock = FileLock::Try(cache_.LockPath("org/name", "quire.lock"), LockMode::kShared);
    ASSERT_TRUE(lock.ok());
    EXPECT_TRUE(absl::IsFailedPrecondition(cache_.Remove({"org/name", "", ""}).status()));
    EXPECT_TRUE(cache_.Find({"org/name", "", ""}).ok());
  }
  EXPECT_TRUE(cache_.Remove({"org/name", "", ""}).ok());
}

TEST_F(ModelCacheTest, IntegrityCheckFindsDamage) {
  Publish("org/name", "main", kOne, {"model.safetensors"});
  const fs::path link = fs::path(Snapshot(kOne)) / "evil";
  fs::create_symlink("/etc/passwd", link);
  EXPECT_THAT(Message(cache_.CheckIntegrity("org/name")), HasSubstr("/etc/passwd"));
  fs::remove(link);
  dir_.Write("hub/models--org--name/refs/stale", kTwo);
  EXPECT_THAT(Message(cache_.CheckIntegrity("org/name")), HasSubstr("stale"));
  fs::remove(fs::path(dir_.path()) / "hub/models--org--name/refs/stale");
  dir_.Write("hub/models--org--name/blobs/name", "");
  EXPECT_THAT(Message(cache_.CheckIntegrity("org/name")),
              HasSubstr("blob name is not named by a content hash; remove it"));
}

// A link to itself cannot be followed, not even by root.
TEST_F(ModelCacheTest, UnreadableFoldersAreErrorsWithPathAndCause) {
  for (const char* const folder : {"refs", "snapshots"}) {
    Publish("org/name", "main", kOne, {"model.safetensors"});
    const fs::path path = fs::path(cache_.RepositoryDir("org/name")) / folder;
    fs::remove_all(path);
    fs::create_symlink(folder, path);
    for (const absl::Status& status :
         {cache_.Find({"org/name", kOne, ""}).status(), cache_.List().status(),
          cache_.Remove({"org/name", kOne, ""}).status(), cache_.CheckIntegrity("org/name")}) {
      EXPECT_THAT(Message(status), HasSubstr(path.string())) << folder;
      EXPECT_THAT(Message(status), HasSubstr("Too many levels of symbolic links")) << folder;
    }
    fs::remove(path);
  }
  const ModelCache looped(dir_.path() + "/loop");
  fs::create_symlink("loop", looped.root());
  EXPECT_EQ(Message(looped.List().status()), looped.root() + ": Too many levels of symbolic links");
  setenv("HF_HUB_CACHE", looped.root().c_str(), 1);
  EXPECT_THAT(Message(LocateModel("org/name").status()),
              HasSubstr("and the model cache cannot be read: " + looped.root()));
  unsetenv("HF_HUB_CACHE");
}

TEST_F(ModelCacheTest, FullDiskIsTheCauseOfARefThatCannotBeWritten) {
  const std::string path =
      absl::StrCat(cache_.RepositoryDir("org/name"), "/ref.", getpid(), ".incomplete");
  fs::create_directories(cache_.RepositoryDir("org/name"));
  fs::create_symlink("/dev/full", path);
  EXPECT_EQ(Message(cache_.Publish("org/name", "main", kOne, {})),
            absl::StrCat("cannot write ", path, ": No space left on device"));
  EXPECT_FALSE(fs::exists(cache_.RepositoryDir("org/name") + "/refs/main"));
}

TEST_F(ModelCacheTest, StaysSoundUnderRandomChanges) {
  const std::uint32_t seed = std::random_device()();
  SCOPED_TRACE(absl::StrCat("seed ", seed));
  std::mt19937 random(seed);
  const std::vector<std::string> all = {"a.gguf", "b.gguf", "config.json", "model.safetensors"};
  const std::string commits[] = {kOne, kTwo};
  const std::string refs[] = {"main", "v1"};
  for (int round = 0; round < 200; ++round) {
    std::vector<std::string> names = all;
    std::ranges::shuffle(names, random);
    names.resize(1 + random() % all.size());
    switch (random() % 4) {
      case 0:
        (void)cache_.Remove({"org/name", random() % 2 == 0 ? "" : refs[random() % 2],
                             random() % 2 == 0 ? "" : "a.gguf"});
        break;
      default:
        Publish("org/name", refs[random() % 2], commits[random() % 2], names);
    }
    const absl::Status status = cache_.CheckIntegrity("org/name");
    ASSERT_TRUE(status.ok()) << status;
  }
}

TEST_F(ModelCacheTest, LocatesPathsBeforeNames) {
  setenv("HF_HUB_CACHE", cache_.root().c_str(), 1);
  Publish("org/name", "main", kOne, {"model.safetensors"});
  EXPECT_EQ(LocateModel("embedded").value(), "embedded");
  EXPECT_EQ(LocateModel(dir_.path()).value(), dir_.path());
  EXPECT_EQ(LocateModel("org/name").value(), Snapshot(kOne));
  EXPECT_EQ(Message(LocateModel("org/other").status()),
            "\"org/other\" is not a file or directory, and the model org/other was not pulled; "
            "run: quire pull org/other");
  EXPECT_EQ(Message(LocateModel("/no/such/folder").status()), "\"/no/such/folder\" does not exist");
  EXPECT_EQ(Message(LocateModel("").status()), "\"\" does not exist");
  const fs::path before = fs::current_path();
  fs::current_path(dir_.path());
  fs::create_directories("org/name");
  EXPECT_EQ(LocateModel("org/name").value(), "org/name");
  fs::current_path(before);
  unsetenv("HF_HUB_CACHE");
}

TEST(LocateModelTest, NeedsAHomeForNames) {
  const std::pair<const char*, std::optional<std::string>> variables[] = {
      {"HOME", ProcessEnvironment("HOME")},
      {"HF_HOME", ProcessEnvironment("HF_HOME")},
      {"HF_HUB_CACHE", ProcessEnvironment("HF_HUB_CACHE")},
      {"HUGGINGFACE_HUB_CACHE", ProcessEnvironment("HUGGINGFACE_HUB_CACHE")},
      {"XDG_CACHE_HOME", ProcessEnvironment("XDG_CACHE_HOME")}};
  for (const auto& [name, value] : variables) unsetenv(name);
  EXPECT_EQ(Message(LocateModel("org/name").status()),
            "\"org/name\" is not a file or directory; the directory of the model cache is unknown "
            "because HOME is not set; set HF_HOME");
  for (const auto& [name, value] : variables) {
    if (value) setenv(name, value->c_str(), 1);
  }
}

TEST(RepositoryOfPathTest, ReadsTheNameFromASnapshot) {
  const std::string snapshot = absl::StrCat("/x/models--org--name/snapshots/", kOne);
  EXPECT_EQ(RepositoryOfPath(snapshot), "org/name");
  EXPECT_EQ(RepositoryOfPath(snapshot + "/"), "org/name");
  EXPECT_EQ(RepositoryOfPath(snapshot + "/a/b.gguf"), "org/name");
  EXPECT_EQ(RepositoryOfPath("/x/models--org--name/snapshots/main"), "");
  EXPECT_EQ(RepositoryOfPath("/x/models--org--name"), "");
  EXPECT_EQ(RepositoryOfPath("/models/Llama"), "");
}

}  // namespace
}  // namespace quire::hub
