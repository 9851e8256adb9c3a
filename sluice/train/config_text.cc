// The writing half of config.h.
#include <utility>

#include "sluice/common/errors.h"
#include "sluice/train/config.h"
#include "sluice/train/config_keys.h"

namespace sluice {
namespace {

std::string toml_value(std::int64_t value) { return fmt::format("{}", value); }
std::string toml_value(int value) { return fmt::format("{}", value); }
std::string toml_value(bool value) { return value ? "true" : "false"; }

std::string toml_value(double value) {
  std::string text = fmt::format("{}", value);  // shortest text that reads back to the same bits
  if (text.find_first_of(".en") == std::string::npos) text += ".0";
  return text;
}

std::string toml_value(const std::string& value) { return quote_toml(value); }

std::string toml_value(const std::vector<std::string>& values) {
  std::string text;
  for (const std::string& value : values) text += (text.empty() ? "" : ", ") + toml_value(value);
  return "[" + text + "]";
}

std::string toml_value(DType value) { return toml_value(std::string(name_of(value, kDTypeNames))); }
std::string toml_value(Recompute value) {
  return toml_value(std::string(name_of(value, kRecomputeNames)));
}

bool is_count(const std::string& text) {
  return !text.empty() && text.find_first_not_of("0123456789") == std::string::npos;
}

/// Visitor: hands every key with its value as TOML to `line`.
template <typename Section, typename Line>
class KeyWriter {
 public:
  KeyWriter(Section section, Line line) : section_(std::move(section)), line_(std::move(line)) {}

  void section(std::string_view name, std::string_view meaning) { section_(name, meaning); }
  template <typename T>
  void key(std::string_view name, const T& value, std::string_view meaning) {
    line_(name, toml_value(value), meaning);
  }
  template <typename T, typename Rule>
  void key(std::string_view name, const T& value, const Rule&, std::string_view meaning) {
    line_(name, toml_value(value), meaning);
  }
  void key(std::string_view name, const std::string& value, const ChoiceOrCountRule&,
           std::string_view meaning) {
    line_(name, is_count(value) ? value : toml_value(value), meaning);
  }

 private:
  Section section_;
  Line line_;
};

}  // namespace

std::string quote_toml(std::string_view text) {
  std::string result = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      result += '\\';
      result += c;
    } else if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) {
      result += fmt::format("\\u{:04x}", static_cast<unsigned>(c));
    } else {
      result += c;
    }
  }
  return result + "\"";
}

std::string to_toml(const RunConfig& config) {
  std::string text;
  KeyWriter writer(
      [&](std::string_view name, std::string_view) {
        text += fmt::format("{}[{}]\n", text.empty() ? "" : "\n", name);
      },
      [&](std::string_view name, const std::string& value, std::string_view) {
        text += fmt::format("{} = {}\n", name, value);
      });
  visit_keys(config, writer);
  return text;
}

std::string describe_config_keys() {
  std::string text;
  const RunConfig defaults;
  KeyWriter writer(
      [&](std::string_view name, std::string_view meaning) {
        text += fmt::format("{}[{}] {}\n", text.empty() ? "" : "\n", name, meaning);
      },
      [&](std::string_view name, const std::string& value, std::string_view meaning) {
        text += fmt::format("  {:<34} {}\n", fmt::format("{} = {}", name, value), meaning);
      });
  visit_keys(defaults, writer);
  return text;
}

}  // namespace sluice
