#include "text/chat/jinja/runtime.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "text/chat/jinja/strings.h"

namespace quire::text::jinja {

absl::Status Runtime::Charge(std::int64_t steps) {
  steps_ += steps;
  if (steps_ <= limits_.max_steps) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("the rendering exceeds ", limits_.max_steps, " steps (chat.max_render_steps)"));
}

absl::Status Runtime::ChargeText(std::size_t bytes) {
  if (bytes > static_cast<std::size_t>(limits_.max_bytes)) {
    return absl::ResourceExhaustedError(absl::StrCat("the rendering creates a text of more than ",
                                                     limits_.max_bytes,
                                                     " bytes (chat.max_render_bytes)"));
  }
  return ChargeBytes(bytes);
}

absl::Status Runtime::ChargeKey(const Value& key) {
  std::int64_t weight = std::min(WeightOf(key), limits_.max_steps + 1) - 1;
  if (key.is_sequence()) weight *= key.as_sequence()->depth;
  return Charge(weight);
}

absl::StatusOr<std::string> Runtime::Print(const Value& value) {
  if (!value.is_string() && !value.is_undefined()) return PrintRepr(value);
  QUIRE_RETURN_IF_ERROR(ChargeWalk(value));
  return value.is_string() ? value.as_string() : std::string();
}

absl::StatusOr<std::string> Runtime::PrintRepr(const Value& value) {
  QUIRE_RETURN_IF_ERROR(ChargeWalk(value));
  QUIRE_ASSIGN_OR_RETURN(std::string text,
                         ToRepr(value, static_cast<std::size_t>(limits_.max_bytes)));
  // ChargeWalk does not count objects, so their text is charged here.
  QUIRE_RETURN_IF_ERROR(ChargeBytes(text.size()));
  return text;
}

absl::StatusOr<Iteration> Iteration::Over(const Value& value, Runtime& runtime) {
  Iteration iteration;
  if (value.is_sequence()) {
    iteration.sequence_ = value.as_sequence();
    return iteration;
  }
  iteration.sequence_ = std::make_shared<Sequence>();
  std::vector<Value>& items = iteration.sequence_->items;
  if (value.is_string()) {
    QUIRE_RETURN_IF_ERROR(runtime.Charge(static_cast<std::int64_t>(value.as_string().size())));
    for (const absl::string_view character : Characters(value.as_string())) {
      items.push_back(Value::String(character));
    }
  } else if (value.is_map()) {
    const auto& entries = value.as_map()->entries;
    QUIRE_RETURN_IF_ERROR(runtime.Charge(static_cast<std::int64_t>(entries.size())));
    for (const auto& [key, entry] : entries) items.push_back(key);
  } else if (!value.is_undefined()) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", TypeName(value), "' object is not iterable"));
  }
  return iteration;
}

const Value* Iteration::Next() {
  if (sequence_ == nullptr) return nullptr;
  std::size_t& place =
      sequence_->kind == SequenceKind::kIterator ? sequence_->num_returned : position_;
  return place < sequence_->items.size() ? &sequence_->items[place++] : nullptr;
}

std::vector<Value> Iteration::Rest() {
  std::vector<Value> rest;
  while (const Value* item = Next()) rest.push_back(*item);
  return rest;
}

absl::StatusOr<std::vector<std::optional<Value>>> BindArguments(
    absl::string_view callee, const Arguments& arguments,
    const std::vector<absl::string_view>& names) {
  std::vector<std::optional<Value>> bound(names.size());
  if (arguments.positional.size() > names.size()) {
    return absl::InvalidArgumentError(absl::StrCat(callee, " takes at most ", names.size(),
                                                   " arguments, ", arguments.positional.size(),
                                                   " were given"));
  }
  for (std::size_t i = 0; i < arguments.positional.size(); ++i) bound[i] = arguments.positional[i];
  for (const auto& [name, value] : arguments.named) {
    const auto place = std::find(names.begin(), names.end(), name);
    if (place == names.end()) {
      return absl::InvalidArgumentError(absl::StrCat(callee, " has no argument '", name, "'"));
    }
    std::optional<Value>& slot = bound[static_cast<std::size_t>(place - names.begin())];
    if (slot) {
      return absl::InvalidArgumentError(
          absl::StrCat(callee, " got several values for argument '", name, "'"));
    }
    slot = value;
  }
  return bound;
}

}  // namespace quire::text::jinja
