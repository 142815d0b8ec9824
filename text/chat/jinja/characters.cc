#include "text/chat/jinja/characters.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <iterator>

#include "base/utf8.h"
#include "text/unicode/unicode.h"

namespace quire::text::jinja {
namespace {

struct CodeRange {
  char32_t first;
  char32_t last;
};

// Characters with Numeric_Type=Digit.
constexpr CodeRange kDigits[] = {
    {0xB2, 0xB3},       {0xB9, 0xB9},       {0x1369, 0x1371},   {0x19DA, 0x19DA},
    {0x2070, 0x2070},   {0x2074, 0x2079},   {0x2080, 0x2089},   {0x2460, 0x2468},
    {0x2474, 0x247C},   {0x2488, 0x2490},   {0x24EA, 0x24EA},   {0x24F5, 0x24FD},
    {0x24FF, 0x24FF},   {0x2776, 0x277E},   {0x2780, 0x2788},   {0x278A, 0x2792},
    {0x10A40, 0x10A43}, {0x10E60, 0x10E68}, {0x11052, 0x1105A}, {0x1F100, 0x1F10A}};
// Characters with a numeric value that are not in the categories Nd, Nl and No.
constexpr CodeRange kNumericLetters[] = {
    {0x3405, 0x3405},   {0x3483, 0x3483},   {0x382A, 0x382A},   {0x3B4D, 0x3B4D},
    {0x4E00, 0x4E00},   {0x4E03, 0x4E03},   {0x4E07, 0x4E07},   {0x4E09, 0x4E09},
    {0x4E5D, 0x4E5D},   {0x4E8C, 0x4E8C},   {0x4E94, 0x4E94},   {0x4E96, 0x4E96},
    {0x4EBF, 0x4EC0},   {0x4EDF, 0x4EDF},   {0x4EE8, 0x4EE8},   {0x4F0D, 0x4F0D},
    {0x4F70, 0x4F70},   {0x5104, 0x5104},   {0x5146, 0x5146},   {0x5169, 0x5169},
    {0x516B, 0x516B},   {0x516D, 0x516D},   {0x5341, 0x5341},   {0x5343, 0x5345},
    {0x534C, 0x534C},   {0x53C1, 0x53C4},   {0x56DB, 0x56DB},   {0x58F1, 0x58F1},
    {0x58F9, 0x58F9},   {0x5E7A, 0x5E7A},   {0x5EFE, 0x5EFF},   {0x5F0C, 0x5F0E},
    {0x5F10, 0x5F10},   {0x62FE, 0x62FE},   {0x634C, 0x634C},   {0x67D2, 0x67D2},
    {0x6F06, 0x6F06},   {0x7396, 0x7396},   {0x767E, 0x767E},   {0x8086, 0x8086},
    {0x842C, 0x842C},   {0x8CAE, 0x8CAE},   {0x8CB3, 0x8CB3},   {0x8D30, 0x8D30},
    {0x9621, 0x9621},   {0x9646, 0x9646},   {0x964C, 0x964C},   {0x9678, 0x9678},
    {0x96F6, 0x96F6},   {0xF96B, 0xF96B},   {0xF973, 0xF973},   {0xF978, 0xF978},
    {0xF9B2, 0xF9B2},   {0xF9D1, 0xF9D1},   {0xF9D3, 0xF9D3},   {0xF9FD, 0xF9FD},
    {0x20001, 0x20001}, {0x20064, 0x20064}, {0x200E2, 0x200E2}, {0x20121, 0x20121},
    {0x2092A, 0x2092A}, {0x20983, 0x20983}, {0x2098C, 0x2098C}, {0x2099C, 0x2099C},
    {0x20AEA, 0x20AEA}, {0x20AFD, 0x20AFD}, {0x20B19, 0x20B19}, {0x22390, 0x22390},
    {0x22998, 0x22998}, {0x23B1B, 0x23B1B}, {0x2626D, 0x2626D}, {0x2F890, 0x2F890}};
// XID_Start is the letters and Nl, plus kOtherStart, minus kNoStart. XID_Continue is the letters,
// Nl, Mn, Mc, Nd and Pc, plus kOtherPart, minus kNoPart.
constexpr CodeRange kOtherStart[] = {{0x1885, 0x1886}, {0x2118, 0x2118}, {0x212E, 0x212E}};
constexpr CodeRange kNoStart[] = {
    {0x37A, 0x37A},   {0xE33, 0xE33},   {0xEB3, 0xEB3},   {0x2E2F, 0x2E2F}, {0xFC5E, 0xFC63},
    {0xFDFA, 0xFDFB}, {0xFE70, 0xFE70}, {0xFE72, 0xFE72}, {0xFE74, 0xFE74}, {0xFE76, 0xFE76},
    {0xFE78, 0xFE78}, {0xFE7A, 0xFE7A}, {0xFE7C, 0xFE7C}, {0xFE7E, 0xFE7E}, {0xFF9E, 0xFF9F}};
constexpr CodeRange kOtherPart[] = {{0xB7, 0xB7},     {0x387, 0x387},   {0x1369, 0x1371},
                                    {0x19DA, 0x19DA}, {0x2118, 0x2118}, {0x212E, 0x212E}};
constexpr CodeRange kNoPart[] = {{0x37A, 0x37A},   {0x2E2F, 0x2E2F}, {0xFC5E, 0xFC63},
                                 {0xFDFA, 0xFDFB}, {0xFE70, 0xFE70}, {0xFE72, 0xFE72},
                                 {0xFE74, 0xFE74}, {0xFE76, 0xFE76}, {0xFE78, 0xFE78},
                                 {0xFE7A, 0xFE7A}, {0xFE7C, 0xFE7C}, {0xFE7E, 0xFE7E}};
// Letters of category Lm that utf8proc treats as lower case, but Unicode 14 does not.
constexpr CodeRange kNotLower[] = {{0x10FC, 0x10FC}, {0xA7F2, 0xA7F4}, {0xAB69, 0xAB69}};
// Case_Ignorable characters that are not in the categories Mn, Me, Cf, Lm and Sk.
constexpr CodeRange kCaseIgnorable[] = {
    {0x27, 0x27},     {0x2E, 0x2E},     {0x3A, 0x3A},     {0xB7, 0xB7},
    {0x387, 0x387},   {0x55F, 0x55F},   {0x5F4, 0x5F4},   {0x2018, 0x2019},
    {0x2024, 0x2024}, {0x2027, 0x2027}, {0xFE13, 0xFE13}, {0xFE52, 0xFE52},
    {0xFE55, 0xFE55}, {0xFF07, 0xFF07}, {0xFF0E, 0xFF0E}, {0xFF1A, 0xFF1A}};

struct SpecialCase {
  char32_t c;
  absl::string_view upper;
  absl::string_view title;
};
// Unconditional mappings to several characters, from SpecialCasing.txt. AppendUpper handles U+1F80
// to U+1FAF.
constexpr SpecialCase kSpecialCases[] = {{0xDF, "SS", "Ss"},
                                         {0x149, "\u02BCN", "\u02BCN"},
                                         {0x1F0, "J\u030C", "J\u030C"},
                                         {0x390, "\u0399\u0308\u0301", "\u0399\u0308\u0301"},
                                         {0x3B0, "\u03A5\u0308\u0301", "\u03A5\u0308\u0301"},
                                         {0x587, "\u0535\u0552", "\u0535\u0582"},
                                         {0x1E96, "H\u0331", "H\u0331"},
                                         {0x1E97, "T\u0308", "T\u0308"},
                                         {0x1E98, "W\u030A", "W\u030A"},
                                         {0x1E99, "Y\u030A", "Y\u030A"},
                                         {0x1E9A, "A\u02BE", "A\u02BE"},
                                         {0x1F50, "\u03A5\u0313", "\u03A5\u0313"},
                                         {0x1F52, "\u03A5\u0313\u0300", "\u03A5\u0313\u0300"},
                                         {0x1F54, "\u03A5\u0313\u0301", "\u03A5\u0313\u0301"},
                                         {0x1F56, "\u03A5\u0313\u0342", "\u03A5\u0313\u0342"},
                                         {0x1FB2, "\u1FBA\u0399", "\u1FBA\u0345"},
                                         {0x1FB3, "\u0391\u0399", "\u1FBC"},
                                         {0x1FB4, "\u0386\u0399", "\u0386\u0345"},
                                         {0x1FB6, "\u0391\u0342", "\u0391\u0342"},
                                         {0x1FB7, "\u0391\u0342\u0399", "\u0391\u0342\u0345"},
                                         {0x1FBC, "\u0391\u0399", "\u1FBC"},
                                         {0x1FC2, "\u1FCA\u0399", "\u1FCA\u0345"},
                                         {0x1FC3, "\u0397\u0399", "\u1FCC"},
                                         {0x1FC4, "\u0389\u0399", "\u0389\u0345"},
                                         {0x1FC6, "\u0397\u0342", "\u0397\u0342"},
                                         {0x1FC7, "\u0397\u0342\u0399", "\u0397\u0342\u0345"},
                                         {0x1FCC, "\u0397\u0399", "\u1FCC"},
                                         {0x1FD2, "\u0399\u0308\u0300", "\u0399\u0308\u0300"},
                                         {0x1FD3, "\u0399\u0308\u0301", "\u0399\u0308\u0301"},
                                         {0x1FD6, "\u0399\u0342", "\u0399\u0342"},
                                         {0x1FD7, "\u0399\u0308\u0342", "\u0399\u0308\u0342"},
                                         {0x1FE2, "\u03A5\u0308\u0300", "\u03A5\u0308\u0300"},
                                         {0x1FE3, "\u03A5\u0308\u0301", "\u03A5\u0308\u0301"},
                                         {0x1FE4, "\u03A1\u0313", "\u03A1\u0313"},
                                         {0x1FE6, "\u03A5\u0342", "\u03A5\u0342"},
                                         {0x1FE7, "\u03A5\u0308\u0342", "\u03A5\u0308\u0342"},
                                         {0x1FF2, "\u1FFA\u0399", "\u1FFA\u0345"},
                                         {0x1FF3, "\u03A9\u0399", "\u1FFC"},
                                         {0x1FF4, "\u038F\u0399", "\u038F\u0345"},
                                         {0x1FF6, "\u03A9\u0342", "\u03A9\u0342"},
                                         {0x1FF7, "\u03A9\u0342\u0399", "\u03A9\u0342\u0345"},
                                         {0x1FFC, "\u03A9\u0399", "\u1FFC"},
                                         {0xFB00, "FF", "Ff"},
                                         {0xFB01, "FI", "Fi"},
                                         {0xFB02, "FL", "Fl"},
                                         {0xFB03, "FFI", "Ffi"},
                                         {0xFB04, "FFL", "Ffl"},
                                         {0xFB05, "ST", "St"},
                                         {0xFB06, "ST", "St"},
                                         {0xFB13, "\u0544\u0546", "\u0544\u0576"},
                                         {0xFB14, "\u0544\u0535", "\u0544\u0565"},
                                         {0xFB15, "\u0544\u053B", "\u0544\u056B"},
                                         {0xFB16, "\u054E\u0546", "\u054E\u0576"},
                                         {0xFB17, "\u0544\u053D", "\u0544\u056D"}};

constexpr char32_t kCapitalSigma = 0x3A3;
constexpr char32_t kFinalSigma = 0x3C2;

template <std::size_t n>
bool IsIn(const CodeRange (&ranges)[n], char32_t c) {
  const auto after =
      std::upper_bound(std::begin(ranges), std::end(ranges), c,
                       [](char32_t value, const CodeRange& range) { return value < range.first; });
  return after != std::begin(ranges) && c <= std::prev(after)->last;
}

utf8proc_int32_t Code(char32_t c) {
  return static_cast<utf8proc_int32_t>(c);
}

utf8proc_category_t Category(char32_t c) {
  return utf8proc_category(Code(c));
}

const SpecialCase* FindSpecialCase(char32_t c) {
  const auto found =
      std::lower_bound(std::begin(kSpecialCases), std::end(kSpecialCases), c,
                       [](const SpecialCase& row, char32_t value) { return row.c < value; });
  return found != std::end(kSpecialCases) && found->c == c ? &*found : nullptr;
}

bool IsCaseIgnorable(char32_t c) {
  switch (Category(c)) {
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_SK:
      return true;
    default:
      return IsIn(kCaseIgnorable, c);
  }
}

// Returns whether the character from `begin` to `end` meets the condition Final_Sigma of
// SpecialCasing.txt.
bool EndsWord(absl::string_view text, std::size_t begin, std::size_t end) {
  bool follows_cased = false;
  while (begin > 0) {
    const Utf8Char before = DecodeUtf8Before(text, begin);
    begin -= before.size_bytes;
    if (IsCaseIgnorable(before.code_point)) continue;
    follows_cased = IsCased(before.code_point);
    break;
  }
  if (!follows_cased) return false;
  while (end < text.size()) {
    const Utf8Char after = DecodeUtf8At(text, end);
    end += after.size_bytes;
    if (!IsCaseIgnorable(after.code_point)) return !IsCased(after.code_point);
  }
  return true;
}

}  // namespace

bool IsLetter(char32_t c) {
  const utf8proc_category_t category = Category(c);
  return category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_LO;
}

bool IsLower(char32_t c) {
  return utf8proc_islower(Code(c)) != 0 && !IsIn(kNotLower, c);
}

bool IsUpper(char32_t c) {
  return utf8proc_isupper(Code(c)) != 0;
}

bool IsTitle(char32_t c) {
  return Category(c) == UTF8PROC_CATEGORY_LT;
}

bool IsCased(char32_t c) {
  return IsLower(c) || IsUpper(c) || IsTitle(c);
}

bool IsDecimal(char32_t c) {
  return Category(c) == UTF8PROC_CATEGORY_ND;
}

bool IsDigit(char32_t c) {
  return IsDecimal(c) || IsIn(kDigits, c);
}

bool IsNumericValue(char32_t c) {
  return IsNumeric(c) || IsIn(kNumericLetters, c);
}

bool IsIdentifierStart(char32_t c) {
  if (c == '_' || IsIn(kOtherStart, c)) return true;
  return (IsLetter(c) || Category(c) == UTF8PROC_CATEGORY_NL) && !IsIn(kNoStart, c);
}

bool IsIdentifierPart(char32_t c) {
  if (IsIn(kOtherPart, c)) return true;
  switch (Category(c)) {
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC:
      return true;
    default:
      return IsLetter(c) && !IsIn(kNoPart, c);
  }
}

bool IsPrintable(char32_t c) {
  if (c < 0x7F) return c >= 0x20;
  if (c >= 0xFDD0 && c <= 0xFDEF) return true;
  switch (Category(c)) {
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
    case UTF8PROC_CATEGORY_ZS:
      return false;
    default:
      return true;
  }
}

void AppendUpper(char32_t c, std::string& out) {
  if (c >= 0x1F80 && c <= 0x1FAF) {
    // These are alpha, eta and omega with a breathing and an iota subscript, 16 characters each.
    // The upper case is the capital with the same breathing, and a capital iota.
    constexpr char32_t kCapitals[] = {0x1F08, 0x1F28, 0x1F68};
    constexpr char32_t kCapitalIota = 0x399;
    AppendUtf8(kCapitals[(c - 0x1F80) / 16] + c % 8, out);
    AppendUtf8(kCapitalIota, out);
    return;
  }
  if (const SpecialCase* special = FindSpecialCase(c)) {
    out.append(special->upper.data(), special->upper.size());
  } else {
    AppendUtf8(static_cast<char32_t>(utf8proc_toupper(Code(c))), out);
  }
}

void AppendTitle(char32_t c, std::string& out) {
  if (const SpecialCase* special = FindSpecialCase(c)) {
    out.append(special->title.data(), special->title.size());
  } else {
    AppendUtf8(static_cast<char32_t>(utf8proc_totitle(Code(c))), out);
  }
}

void AppendFolded(char32_t c, std::string& out) {
  std::array<utf8proc_int32_t, 8> folded;
  int boundary = 0;
  const utf8proc_ssize_t count =
      utf8proc_decompose_char(Code(c), folded.data(), static_cast<utf8proc_ssize_t>(folded.size()),
                              UTF8PROC_CASEFOLD, &boundary);
  for (utf8proc_ssize_t i = 0; i < count; ++i) {
    AppendUtf8(static_cast<char32_t>(folded[static_cast<std::size_t>(i)]), out);
  }
}

void AppendLower(absl::string_view text, std::size_t at, std::string& out) {
  const Utf8Char c = DecodeUtf8At(text, at);
  if (c.code_point == kCapitalSigma && EndsWord(text, at, at + c.size_bytes)) {
    AppendUtf8(kFinalSigma, out);
  } else {
    AppendLowercase(c.code_point, out);
  }
}

}  // namespace quire::text::jinja
