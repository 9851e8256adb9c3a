#include "sluice/cli/numbers.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "sluice/common/errors.h"

namespace sluice::cli {
namespace {

template <typename T>
bool reads(std::string_view text, T& value) {
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  return error == std::errc() && stop == end;
}

}  // namespace

int parse_whole(std::string_view option, std::string_view text, int least) {
  int value = 0;
  if (!reads(text, value) || value < least) {
    throw InvalidArgument(fmt::format("{} {}: must be a whole number from {} to 2147483647", option,
                                      text.empty() ? "''" : text, least));
  }
  return value;
}

double parse_number(std::string_view option, std::string_view text) {
  double value = 0.0;
  if (!reads(text, value) || !std::isfinite(value) || value < 0.0) {
    throw InvalidArgument(
        fmt::format("{} {}: must be a number of 0 or more", option, text.empty() ? "''" : text));
  }
  return value;
}

CLI::Option* add_whole(CLI::App& app, const std::string& name, int& value, int least,
                       const std::string& description) {
  return app.add_option_function<std::string>(
      name,
      [name, &value, least](const std::string& text) { value = parse_whole(name, text, least); },
      description);
}

CLI::Option* add_choice(CLI::App& app, const std::string& name, std::string& value,
                        const std::vector<std::string>& choices, const std::string& description) {
  return app
      .add_option_function<std::string>(
          name,
          [name, &value, choices](const std::string& text) {
            if (std::find(choices.begin(), choices.end(), text) == choices.end()) {
              throw InvalidArgument(
                  fmt::format("{} {}: choose one of {}", name, text, fmt::join(choices, ", ")));
            }
            value = text;
          },
          description)
      ->type_name(fmt::format("{}", fmt::join(choices, "|")));
}

}  // namespace sluice::cli
