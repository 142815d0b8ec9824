#pragma once

// Writes GGUF files in memory.

#include <cstdint>
#include <string>
#include <vector>

namespace quire::models::parity {

// A GGUF file of version 3, built piece by piece.
class GgufWriter {
 public:
  void Text(const std::string& key, const std::string& value) {
    Key(key, 8);
    String(&header_, value);
  }
  void Integer(const std::string& key, std::uint32_t value) {
    Key(key, 4);
    Put(&header_, value);
  }
  void Number(const std::string& key, double value) {
    Key(key, 6);
    Put(&header_, static_cast<float>(value));
  }
  void Bool(const std::string& key, bool value) {
    Key(key, 7);
    Put(&header_, static_cast<std::uint8_t>(value));
  }
  void Integers(const std::string& key, const std::vector<std::int32_t>& values) {
    Key(key, 9);
    Put(&header_, std::uint32_t{5});
    Put(&header_, static_cast<std::uint64_t>(values.size()));
    for (const std::int32_t value : values) Put(&header_, value);
  }
  void Texts(const std::string& key, const std::vector<std::string>& values) {
    Key(key, 9);
    Put(&header_, std::uint32_t{8});
    Put(&header_, static_cast<std::uint64_t>(values.size()));
    for (const std::string& value : values) String(&header_, value);
  }
  void Bools(const std::string& key, const std::vector<bool>& values) {
    Key(key, 9);
    Put(&header_, std::uint32_t{7});
    Put(&header_, static_cast<std::uint64_t>(values.size()));
    for (const bool value : values) Put(&header_, static_cast<std::uint8_t>(value));
  }
  // Shapes have the slowest dimension first. `type` uses ggml's numbers: 0 is F32, 30 is BF16.
  void Tensor(const std::string& name, const std::vector<std::int64_t>& shape, std::uint32_t type,
              const void* bytes, std::size_t size) {
    String(&table_, name);
    Put(&table_, static_cast<std::uint32_t>(shape.size()));
    for (auto extent = shape.rbegin(); extent != shape.rend(); ++extent) {
      Put(&table_, static_cast<std::uint64_t>(*extent));
    }
    Put(&table_, type);
    Pad(&data_);
    Put(&table_, static_cast<std::uint64_t>(data_.size()));
    data_.append(static_cast<const char*>(bytes), size);
    ++num_tensors_;
  }
  void Floats(const std::string& name, const std::vector<float>& values) {
    Tensor(name, {static_cast<std::int64_t>(values.size())}, 0, values.data(), values.size() * 4);
  }
  std::string File() const {
    std::string file = "GGUF";
    Put(&file, std::uint32_t{3});
    Put(&file, num_tensors_);
    Put(&file, num_keys_);
    file += header_ + table_;
    Pad(&file);
    return file + data_;
  }

 private:
  template <typename T>
  static void Put(std::string* to, T value) {
    to->append(reinterpret_cast<const char*>(&value), sizeof(value));
  }
  static void String(std::string* to, const std::string& text) {
    Put(to, static_cast<std::uint64_t>(text.size()));
    *to += text;
  }
  static void Pad(std::string* to) { to->resize((to->size() + 31) / 32 * 32, 0); }
  void Key(const std::string& key, std::uint32_t type) {
    String(&header_, key);
    Put(&header_, type);
    ++num_keys_;
  }

  std::string header_;
  std::string table_;
  std::string data_;
  std::uint64_t num_tensors_ = 0;
  std::uint64_t num_keys_ = 0;
};

}  // namespace quire::models::parity
