#pragma once

// A model fixture in memory, to be changed before it is loaded.

#include <cstddef>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "formats/model_files.h"

namespace quire::models::parity {

// Threads: one. Lifetime: outlives the ModelFiles that it gives and what is loaded from them.
class EditedFixture {
 public:
  // `folder` is a name under tests/testdata/models. The reference's files are left out.
  explicit EditedFixture(const std::string& folder);

  nlohmann::json& config() { return config_; }
  // The text of another file; config.json is written from config().
  std::string& Text(const std::string& name);
  // Changes the values of every tensor in whose name `pattern`, a regular expression, is found.
  // They are stored rounded to the tensor's type. REQUIRES: there is one.
  using Edit = std::function<void(std::vector<float>& values)>;
  void EditTensors(const std::string& pattern, const Edit& edit);

  // Gives every tensor of model.safetensors another name, and adds one of 4 bytes for each of
  // `more`.
  void RenameTensors(const std::function<std::string(const std::string&)>& rename,
                     const std::vector<std::string>& more);

  // Adds a tensor to model.safetensors: the rows of another one, in this order. REQUIRES: as many.
  void AddCopy(const std::string& from, const std::string& to,
               const std::vector<std::size_t>& rows);

  // As edited so far.
  formats::ModelFiles Files();

 private:
  nlohmann::json config_;
  std::vector<std::string> names_;
  std::vector<std::string> texts_;
};

}  // namespace quire::models::parity
