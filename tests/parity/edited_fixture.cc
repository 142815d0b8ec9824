#include "tests/parity/edited_fixture.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <regex>
#include <span>
#include <sstream>
#include <utility>

#include "absl/strings/match.h"
#include "base/check.h"
#include "models/config/hybrid_config.h"
#include "models/weights/checkpoint.h"
#include "tests/parity/parity_harness.h"

namespace quire::models::parity {
namespace {

std::string ReadText(const std::string& path) {
  std::ifstream stream(path, std::ios::binary);
  std::ostringstream text;
  text << stream.rdbuf();
  return text.str();
}

template <typename T, typename ToFloat, typename FromFloat>
void EditValues(const formats::StoredTensor& tensor, const EditedFixture::Edit& edit,
                ToFloat&& to_float, FromFloat&& from_float) {
  std::vector<T> stored(static_cast<std::size_t>(tensor.num_elements()));
  std::memcpy(stored.data(), tensor.bytes.data(), tensor.bytes.size());
  std::vector<float> values;
  for (const T value : stored) values.push_back(to_float(value));
  edit(values);
  QUIRE_CHECK(values.size() == stored.size());
  for (std::size_t i = 0; i < values.size(); ++i) stored[i] = from_float(values[i]);
  // The bytes belong to EditedFixture's own text.
  std::memcpy(const_cast<std::byte*>(tensor.bytes.data()), stored.data(), tensor.bytes.size());
}

struct SafetensorsParts {
  nlohmann::json header;
  std::string data;
};

SafetensorsParts Split(const std::string& text) {
  std::uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, text.data(), sizeof(header_bytes));
  return {nlohmann::json::parse(text.substr(sizeof(header_bytes), header_bytes)),
          text.substr(sizeof(header_bytes) + header_bytes)};
}

std::string Joined(const SafetensorsParts& parts) {
  std::string head = parts.header.dump();
  head.resize((head.size() + 7) / 8 * 8, ' ');
  const std::uint64_t header_bytes = head.size();
  return std::string(reinterpret_cast<const char*>(&header_bytes), sizeof(header_bytes)) + head +
         parts.data;
}

}  // namespace

EditedFixture::EditedFixture(const std::string& folder) {
  const auto files = formats::ModelFiles::FromDirectory(FixturePath(folder));
  QUIRE_CHECK(files.ok());
  for (const std::string& name : files->names()) {
    if (absl::StartsWith(name, "reference.")) continue;
    names_.push_back(name);
    texts_.push_back(ReadText(FixturePath(folder) + "/" + name));
  }
  config_ = nlohmann::json::parse(WithQuotedInfinity(Text("config.json")));
}

std::string& EditedFixture::Text(const std::string& name) {
  const auto found = std::find(names_.begin(), names_.end(), name);
  QUIRE_CHECK(found != names_.end());
  return texts_[static_cast<std::size_t>(found - names_.begin())];
}

void EditedFixture::EditTensors(const std::string& pattern, const Edit& edit) {
  const auto checkpoint = Checkpoint::Open(Files());
  QUIRE_CHECK(checkpoint.ok());
  const std::regex expression(pattern);
  std::size_t hits = 0;
  for (const formats::StoredTensor& tensor : checkpoint->tensors()) {
    if (!std::regex_search(tensor.name, expression)) continue;
    ++hits;
    if (tensor.dtype == DType::kF32) {
      EditValues<float>(
          tensor, edit, [](float x) { return x; }, [](float x) { return x; });
    } else if (tensor.dtype == DType::kF16) {
      EditValues<F16>(
          tensor, edit, [](F16 x) { return x.ToFloat(); },
          [](float x) { return F16::FromFloat(x); });
    } else {
      QUIRE_CHECK(tensor.dtype == DType::kBF16);
      EditValues<BF16>(
          tensor, edit, [](BF16 x) { return x.ToFloat(); },
          [](float x) { return BF16::FromFloat(x); });
    }
  }
  QUIRE_CHECK(hits > 0);
}

void EditedFixture::RenameTensors(const std::function<std::string(const std::string&)>& rename,
                                  const std::vector<std::string>& more) {
  SafetensorsParts parts = Split(Text("model.safetensors"));
  nlohmann::json renamed;
  for (const auto& [name, entry] : parts.header.items()) {
    renamed[name == "__metadata__" ? name : rename(name)] = entry;
  }
  for (const std::string& name : more) {
    const std::size_t begin = parts.data.size();
    parts.data.resize(begin + 4, 0);
    renamed[name] = {{"dtype", "F32"}, {"shape", {1}}, {"data_offsets", {begin, begin + 4}}};
  }
  parts.header = renamed;
  Text("model.safetensors") = Joined(parts);
}

void EditedFixture::AddCopy(const std::string& from, const std::string& to,
                            const std::vector<std::size_t>& rows) {
  SafetensorsParts parts = Split(Text("model.safetensors"));
  nlohmann::json entry = parts.header[from];
  const auto first = entry["data_offsets"][0].get<std::size_t>();
  const auto end = entry["data_offsets"][1].get<std::size_t>();
  const std::size_t row_bytes = (end - first) / entry["shape"][0].get<std::size_t>();
  entry["shape"][0] = rows.size();
  const std::size_t begin = parts.data.size();
  for (const std::size_t row : rows) {
    parts.data += parts.data.substr(first + row * row_bytes, row_bytes);
  }
  entry["data_offsets"] = {begin, parts.data.size()};
  parts.header[to] = entry;
  Text("model.safetensors") = Joined(parts);
}

void EditedFixture::AppendNegatedRows(const std::string& pattern) {
  SafetensorsParts parts = Split(Text("model.safetensors"));
  const std::regex expression(pattern);
  // Tensors must cover the data without gaps, so all of them move.
  std::string data;
  for (auto& [name, entry] : parts.header.items()) {
    if (name == "__metadata__") continue;
    const auto first = entry["data_offsets"][0].get<std::size_t>();
    const auto end = entry["data_offsets"][1].get<std::size_t>();
    const std::size_t begin = data.size();
    data += parts.data.substr(first, end - first);
    if (std::regex_search(name, expression)) {
      QUIRE_CHECK(entry["dtype"] == "BF16" || entry["dtype"] == "F16");
      std::string negated = parts.data.substr(first, end - first);
      // The sign is the top bit of the second byte.
      for (std::size_t i = 1; i < negated.size(); i += 2) {
        negated[i] = static_cast<char>(negated[i] ^ 0x80);
      }
      data += negated;
      entry["shape"][0] = 2 * entry["shape"][0].get<std::size_t>();
    }
    entry["data_offsets"] = {begin, data.size()};
  }
  parts.data = data;
  Text("model.safetensors") = Joined(parts);
}

formats::ModelFiles EditedFixture::Files() {
  Text("config.json") = config_.dump();
  std::vector<formats::ModelFiles::MemoryFile> files;
  for (std::size_t i = 0; i < names_.size(); ++i) {
    files.push_back({names_[i], std::as_bytes(std::span(texts_[i].data(), texts_[i].size()))});
  }
  return formats::ModelFiles::FromMemory("edited fixture", std::move(files));
}

}  // namespace quire::models::parity
