#include "sluice/schedule/pass.h"

#include <fmt/format.h>

#include <charconv>

#include "sluice/common/errors.h"

namespace sluice {
namespace {

constexpr std::string_view kLetters = "FBIWEGSTDU";
static_assert(kLetters.size() == kNumPassKinds);

/// Takes the decimal number at the front of `text`; false when there is none or it does not fit.
bool take_number(std::string_view& text, std::int32_t& number) {
  // from_chars would take a minus sign, which no index has.
  if (text.empty() || text.front() < '0' || text.front() > '9') return false;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc{}) return false;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  return true;
}

}  // namespace

char letter(PassKind kind) { return kLetters[static_cast<std::size_t>(kind)]; }

std::string to_string(const Pass& pass, bool with_slice) {
  if (with_slice) {
    return fmt::format("{}{}{}.{}", pass.stage, letter(pass.kind), pass.microbatch, pass.slice);
  }
  return fmt::format("{}{}{}", pass.stage, letter(pass.kind), pass.microbatch);
}

Pass parse_pass(std::string_view text) {
  const auto fail = [whole = text]() {
    throw InvalidArgument(
        fmt::format("'{}' is not a pass: write stage, letter ({}), microbatch and perhaps .slice, "
                    "such as 2F0 or 2F0.3",
                    whole, kLetters));
  };
  Pass pass;
  if (!take_number(text, pass.stage) || text.empty()) fail();
  const std::size_t kind = kLetters.find(text.front());
  if (kind == std::string_view::npos) fail();
  pass.kind = static_cast<PassKind>(kind);
  text.remove_prefix(1);
  if (!take_number(text, pass.microbatch)) fail();
  if (!text.empty()) {
    if (text.front() != '.') fail();
    text.remove_prefix(1);
    if (!take_number(text, pass.slice) || !text.empty()) fail();
  }
  return pass;
}

}  // namespace sluice
