#pragma once

// An in-memory model fixture that tests modify before loading.

#include <cstddef>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "formats/model_files.h"

namespace quire::models::parity {

// Threads: one. Lifetime: must outlive the ModelFiles that it returns and everything loaded from
// them.
class EditedFixture {
 public:
  // `folder` is a name under tests/testdata/models. The reference's files are excluded.
  explicit EditedFixture(const std::string& folder);

  nlohmann::json& config() { return config_; }
  // Returns the text of another file. config.json is written from config().
  std::string& Text(const std::string& name);
  // Changes the values of every tensor whose name contains a match of the regular expression
  // `pattern`. Values are rounded to the tensor's type. REQUIRES: at least one tensor matches.
  using Edit = std::function<void(std::vector<float>& values)>;
  void EditTensors(const std::string& pattern, const Edit& edit);

  // Renames every tensor of model.safetensors, and adds one of 4 bytes for each of `more`.
  void RenameTensors(const std::function<std::string(const std::string&)>& rename,
                     const std::vector<std::string>& more);

  // Adds a tensor to model.safetensors: these rows of another one, in this order.
  void AddCopy(const std::string& from, const std::string& to,
               const std::vector<std::size_t>& rows);

  // Appends the negated rows of every tensor whose name contains a match of `pattern`. This doubles
  // its first dimension. REQUIRES: the tensors are bf16 or f16.
  void AppendNegatedRows(const std::string& pattern);

  // Returns the files as edited so far.
  formats::ModelFiles Files();

 private:
  nlohmann::json config_;
  std::vector<std::string> names_;
  std::vector<std::string> texts_;
};

}  // namespace quire::models::parity
