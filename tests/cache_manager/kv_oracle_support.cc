#include "tests/cache_manager/kv_oracle_support.h"

#include <cstdlib>
#include <fstream>
#include <iostream>
#include <sstream>

#include "tests/testing/paths.h"

namespace quire::cache::testing {

std::vector<Json> ReadCases(const std::string& file) {
  const char* folder = std::getenv("QUIRE_KV_CASES");
  const std::string path =
      (folder != nullptr ? std::string(folder) : paths::TestData("kv_cache")) + "/" + file;
  std::ifstream in(path);
  EXPECT_TRUE(in.is_open()) << "cannot open " << path;
  std::vector<Json> cases;
  for (std::string line; std::getline(in, line);) {
    if (line.empty()) continue;
    Json json = Json::parse(line, nullptr, /*allow_exceptions=*/false);
    EXPECT_FALSE(json.is_discarded()) << path << ": line " << cases.size() + 1 << " is not JSON";
    cases.push_back(std::move(json));
  }
  EXPECT_FALSE(cases.empty()) << path << " has no case";
  return cases;
}

DType OracleDType(const std::string& name) {
  static const std::map<std::string, DType> kNames = {{"float32", DType::kF32},
                                                      {"bfloat16", DType::kBF16},
                                                      {"float16", DType::kF16},
                                                      {"float8_e4m3fn", DType::kF8E4M3},
                                                      {"int8", DType::kI8}};
  const auto it = kNames.find(name);
  return it != kNames.end() ? it->second : DType::kInvalid;
}

void Tally::StartCase(const Json& line) {
  ++cases_;
  id_ = line.contains("id") ? line["id"].get<std::string>() : line["edge"].get<std::string>();
}

Tally::~Tally() {
  std::ostringstream rows;
  std::int64_t decided = 0;
  for (const auto& [row, count] : decided_) {
    rows << (decided == 0 ? ": " : ", ") << row << " " << count;
    decided += count;
  }
  std::cout << file_ << ": " << cases_ << " cases, " << equal_ << " comparisons, " << decided
            << " answers decided otherwise" << rows.str() << std::endl;
  EXPECT_GT(cases_, 0) << file_;
  EXPECT_GT(equal_, 0) << file_;
}

}  // namespace quire::cache::testing
