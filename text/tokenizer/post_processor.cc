#include "text/tokenizer/post_processor.h"

#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "text/tokenizer/component.h"

namespace quire::text {

absl::StatusOr<PostProcessor> PostProcessor::FromJson(
    const formats::JsonValue& config, const std::function<bool(std::int32_t)>& is_known) {
  PostProcessor processor;
  if (!config.is_null()) QUIRE_RETURN_IF_ERROR(processor.AddStep(config, is_known));
  return processor;
}

PostProcessor PostProcessor::Around(std::vector<std::int32_t> before,
                                    std::vector<std::int32_t> after) {
  PostProcessor processor;
  processor.items_ = {{false, std::move(before)}, {true, {}}, {false, std::move(after)}};
  return processor;
}

absl::Status PostProcessor::AddStep(const formats::JsonValue& config,
                                    const std::function<bool(std::int32_t)>& is_known) {
  QUIRE_ASSIGN_OR_RETURN(const std::string type, config.GetString("type"));
  if (type == "Sequence") {
    return ForEachPart(config, "processors",
                       [&](const formats::JsonValue& part) { return AddStep(part, is_known); });
  }
  // ByteLevel only trims offsets, but quire reports the whole range of a token.
  if (type == "ByteLevel") return absl::OkStatus();
  if (type == "TemplateProcessing") return AddTemplate(config, is_known);
  return UnsupportedType(config, type);
}

absl::Status PostProcessor::AddTemplate(const formats::JsonValue& config,
                                        const std::function<bool(std::int32_t)>& is_known) {
  if (has_template_) return config.Error("is a second TemplateProcessing, only one is supported");
  has_template_ = true;
  QUIRE_ASSIGN_OR_RETURN(const formats::JsonValue special_json, config.Get("special_tokens"));
  QUIRE_RETURN_IF_ERROR(special_json.CheckObject());
  SpecialTokens special;
  for (const auto& [name, value] : special_json.raw().items()) {
    const formats::JsonValue token(value, special_json.PathOf(name));
    QUIRE_ASSIGN_OR_RETURN(const formats::JsonValue ids, token.Get("ids"));
    QUIRE_RETURN_IF_ERROR(ids.CheckArray());
    std::vector<std::int32_t>& known_ids = special[name];
    for (std::size_t i = 0; i < ids.size(); ++i) {
      constexpr std::int64_t kMaxId = std::numeric_limits<std::int32_t>::max();
      QUIRE_ASSIGN_OR_RETURN(const std::int64_t id, ids.At(i).AsInteger(0, kMaxId));
      if (!is_known(static_cast<std::int32_t>(id))) {
        return ids.At(i).Error(absl::StrCat("is ", id, ", but no token has this id"));
      }
      known_ids.push_back(static_cast<std::int32_t>(id));
    }
  }
  QUIRE_ASSIGN_OR_RETURN(items_, ReadTemplate(config, "single", special));
  // A template for two texts is never used, but it is validated so that a malformed file is
  // rejected.
  if (config.Find("pair")) QUIRE_RETURN_IF_ERROR(ReadTemplate(config, "pair", special).status());
  return absl::OkStatus();
}

absl::StatusOr<std::vector<PostProcessor::Item>> PostProcessor::ReadTemplate(
    const formats::JsonValue& config, absl::string_view key, const SpecialTokens& special) {
  std::vector<Item> items;
  const auto add = [&](const formats::JsonValue& piece) -> absl::Status {
    QUIRE_RETURN_IF_ERROR(piece.CheckObject());
    const auto sequence = piece.Find("Sequence");
    const auto token = piece.Find("SpecialToken");
    if (sequence.has_value() == token.has_value()) {
      return piece.Error("must have exactly one of the keys Sequence and SpecialToken");
    }
    if (sequence) {
      // Does not use QUIRE_ASSIGN_OR_RETURN because of a false g++ 12 warning about an
      // uninitialized string.
      const absl::StatusOr<std::string> id = sequence->GetString("id");
      QUIRE_RETURN_IF_ERROR(id.status());
      if (*id != "A" && (*id != "B" || key == "single")) {
        return piece.Error(
            absl::StrCat("names the sequence \"", *id, "\", which this template does not have"));
      }
      items.push_back({true, {}});
      return absl::OkStatus();
    }
    QUIRE_ASSIGN_OR_RETURN(const std::string name, token->GetString("id"));
    const auto ids = special.find(name);
    if (ids == special.end()) {
      return piece.Error(absl::StrCat("names \"", name, "\", which is not among special_tokens"));
    }
    items.push_back({false, ids->second});
    return absl::OkStatus();
  };
  QUIRE_RETURN_IF_ERROR(ForEachPart(config, key, add));
  return items;
}

}  // namespace quire::text
