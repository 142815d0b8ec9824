#include "server/api/wire_check.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/unknown_field_set.h>

#include <cstddef>
#include <optional>

#include "absl/strings/str_cat.h"
#include "base/error_reason.h"
#include "base/utf8.h"
#include "server/api/status_mapping.h"

namespace quire::server {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::UnknownField;
using google::protobuf::UnknownFieldSet;

// Larger than the nesting of any API message.
constexpr int kMaxDepth = 16;

struct BadText {
  std::string field;
  std::size_t offset = 0;
};

// Returns the first string field that is not UTF-8 in `bytes`, an encoded message of type `type`.
std::optional<BadText> FindBadText(const Descriptor* type, const std::string& bytes,
                                   const std::string& prefix, int depth) {
  UnknownFieldSet fields;
  if (depth > kMaxDepth || !fields.ParseFromString(bytes)) return std::nullopt;
  for (int i = 0; i < fields.field_count(); ++i) {
    const UnknownField& raw = fields.field(i);
    const FieldDescriptor* field = type->FindFieldByNumber(raw.number());
    if (field == nullptr || raw.type() != UnknownField::TYPE_LENGTH_DELIMITED) continue;
    const std::string path = prefix + field->name();
    if (field->type() == FieldDescriptor::TYPE_STRING) {
      const std::optional<std::size_t> bad = FirstInvalidUtf8(raw.length_delimited());
      if (bad) return BadText{path, *bad};
    } else if (field->type() == FieldDescriptor::TYPE_MESSAGE) {
      std::optional<BadText> bad =
          FindBadText(field->message_type(), raw.length_delimited(), path + ".", depth + 1);
      if (bad) return bad;
    }
  }
  return std::nullopt;
}

}  // namespace

absl::Status ExplainParseFailure(const Descriptor* type, const std::string& bytes) {
  const std::optional<BadText> bad = FindBadText(type, bytes, "", 0);
  if (bad) {
    return WithReason(absl::InvalidArgumentError(
                          absl::StrCat(bad->field, " is not valid UTF-8 at byte ", bad->offset)),
                      Reason::kBadUtf8,
                      {{"field", bad->field}, {"byte_offset", absl::StrCat(bad->offset)}});
  }
  return BadParameter("request", absl::StrCat(bytes.size(), " bytes"),
                      absl::StrCat("a valid ", type->full_name(), " message"));
}

}  // namespace quire::server
