#include "sluice/train/config_reader.h"

#include <algorithm>
#include <sstream>
#include <utility>

#include "sluice/common/errors.h"
#include "sluice/train/suggest.h"

namespace sluice {
namespace {

std::string_view trim(std::string_view text) {
  const auto first = text.find_first_not_of(" \t");
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(" \t") - first + 1);
}

/// The value as TOML on one line, short enough for a message.
std::string value_text(const toml::node& node) {
  std::ostringstream stream;
  node.visit([&stream](const auto& value) { stream << value; });
  std::string text = stream.str();
  std::replace(text.begin(), text.end(), '\n', ' ');
  constexpr std::size_t kLongest = 80;
  if (text.size() > kLongest) text = text.substr(0, kLongest) + "...";
  return text;
}

template <typename Words>
std::string join(const Words& words) {
  return fmt::format("{}", fmt::join(words, ", "));
}

bool is_count_list(std::string_view text) {
  return !text.empty() && text.find_first_not_of("0123456789, ") == std::string_view::npos;
}

std::vector<std::string> full_names() {
  std::vector<std::string> names;
  for (const auto& key : config_keys()) names.push_back(key.full);
  return names;
}

std::vector<std::string> section_names() {
  std::vector<std::string> names;
  for (const auto& key : config_keys()) {
    if (names.empty() || names.back() != key.section) names.push_back(key.section);
  }
  return names;
}

/// Keys of the same name elsewhere come first: "train.seed" means run.seed.
std::string suggest_key(std::string_view section, std::string_view name) {
  for (const auto& key : config_keys()) {
    if (key.full == key.section + "." + std::string(name)) {
      return fmt::format("; did you mean {}?", key.full);
    }
  }
  std::string hint = did_you_mean(fmt::format("{}.{}", section, name), full_names());
  if (!hint.empty()) return hint;
  std::vector<std::string> valid;
  for (const auto& key : config_keys()) {
    if (key.section == section) valid.push_back(key.full.substr(section.size() + 1));
  }
  return valid.empty() ? "; sections: " + join(section_names())
                       : fmt::format("; keys of [{}]: {}", section, join(valid));
}

std::string rule_text(const IntegerRule& rule) {
  if (rule.high == IntegerRule{}.high) {
    return fmt::format("must be a whole number, at least {}", rule.low);
  }
  return fmt::format("must be a whole number from {} to {}", rule.low, rule.high);
}

std::string rule_text(const RealRule& rule) {
  const std::string low =
      fmt::format("must be a number {} {}", rule.low_open ? "above" : "of at least", rule.low);
  if (rule.high == RealRule{}.high) return low;
  return fmt::format("{} and {} {}", low, rule.high_open ? "below" : "at most", rule.high);
}

bool obeys(double value, const RealRule& rule) {
  // Written so that NaN obeys nothing; infinity is never meant.
  const bool low = rule.low_open ? value > rule.low : value >= rule.low;
  const bool high = rule.high_open ? value < rule.high : value <= rule.high;
  return low && high && value <= std::numeric_limits<double>::max();
}

/// The value after "--set key=": TOML when it is TOML of a type the key may have, else the word.
toml::table parse_override_value(const KeyLister::Key& key, std::string_view raw) {
  toml::table parsed;
  bool is_toml = raw.find('\n') == std::string_view::npos;
  if (is_toml) {
    try {
      parsed = toml::parse(fmt::format("v = {}", raw));
    } catch (const toml::parse_error&) {
      is_toml = false;
    } catch (const MalformedToml&) {
      is_toml = false;
    }
  }
  const toml::node* node = is_toml ? parsed.get("v") : nullptr;
  const bool fits = node != nullptr && (key.kind == KeyKind::kValue || node->is_string() ||
                                        (key.kind == KeyKind::kTextOrCount && node->is_integer()) ||
                                        (key.kind == KeyKind::kTextOrList && node->is_array()));
  if (fits) return parsed;
  if (!raw.empty() && (raw.front() == '[' || raw.front() == '"' || raw.front() == '\'')) {
    throw InvalidArgument(
        fmt::format("--set {}={}: the value is not complete TOML; close the bracket or quote (and "
                    "keep the shell from removing quotes)",
                    key.full, raw));
  }
  try {
    return toml::parse(fmt::format("v = {}", quote_toml(raw)));
  } catch (const toml::parse_error&) {
    throw InvalidArgument(fmt::format("--set {}: the value must be UTF-8 text", key.full));
  }
}

}  // namespace

void KeyLister::add(std::string_view name, KeyKind kind) {
  keys_.push_back({section_, fmt::format("{}.{}", section_, name), kind});
}

const std::vector<KeyLister::Key>& config_keys() {
  static const std::vector<KeyLister::Key> keys = [] {
    KeyLister lister;
    const RunConfig config;
    visit_keys(config, lister);
    return lister.keys();
  }();
  return keys;
}

void refuse_malformed_toml() { throw MalformedToml{}; }

toml::table parse_toml_table(std::string_view text, const std::string& origin) {
  try {
    return toml::parse(text);
  } catch (const toml::parse_error& error) {
    std::string what(error.description());
    std::replace(what.begin(), what.end(), '\n', ' ');
    throw InvalidArgument(fmt::format("{} line {} column {}: {}", origin, error.source().begin.line,
                                      error.source().begin.column, what));
  } catch (const MalformedToml&) {
    throw InvalidArgument(fmt::format("{}: a table header or key is malformed TOML", origin));
  }
}

void refuse_unknown_keys(const toml::table& root, const std::string& origin) {
  const std::vector<std::string> sections = section_names();
  const std::vector<std::string> names = full_names();
  for (const auto& [section, node] : root) {
    const std::string place = fmt::format("({} line {})", origin, node.source().begin.line);
    const bool known = std::find(sections.begin(), sections.end(), section.str()) != sections.end();
    if (!known && !node.is_table()) {
      throw InvalidArgument(fmt::format("{} {}: every key belongs into a section{}", section.str(),
                                        place, suggest_key("", section.str())));
    }
    if (!known) {
      std::string hint = did_you_mean(section.str(), sections);
      if (hint.empty()) hint = "; sections: " + join(sections);
      throw InvalidArgument(fmt::format("[{}] {}: no such section{}", section.str(), place, hint));
    }
    if (!node.is_table()) {
      throw InvalidArgument(fmt::format("{} = {} {}: must be a section, written [{}]",
                                        section.str(), value_text(node), place, section.str()));
    }
    for (const auto& [key, value] : *node.as_table()) {
      const std::string full = fmt::format("{}.{}", section.str(), key.str());
      if (std::find(names.begin(), names.end(), full) == names.end()) {
        throw InvalidArgument(fmt::format("{} ({} line {}): no such key{}", full, origin,
                                          value.source().begin.line,
                                          suggest_key(section.str(), key.str())));
      }
    }
  }
}

void apply_override(toml::table& root, std::string_view text) {
  const auto equals = text.find('=');
  const std::string_view name = trim(text.substr(0, equals));
  if (equals == std::string_view::npos || name.empty()) {
    throw InvalidArgument(
        fmt::format("--set {}: must be section.key=value, such as train.steps=100", text));
  }
  const auto& keys = config_keys();
  const auto key =
      std::find_if(keys.begin(), keys.end(), [&](const auto& k) { return k.full == name; });
  if (key == keys.end()) {
    const auto dot = std::min(name.find('.'), name.size());
    const bool dotted = dot < name.size();
    throw InvalidArgument(fmt::format(
        "--set {}: no such key{}", name,
        suggest_key(dotted ? name.substr(0, dot) : "", dotted ? name.substr(dot + 1) : name)));
  }
  toml::table parsed = parse_override_value(*key, trim(text.substr(equals + 1)));
  toml::table& section = *root.insert(key->section, toml::table{}).first->second.as_table();
  const std::string_view short_name = name.substr(key->section.size() + 1);
  parsed.get("v")->visit(
      [&](auto& value) { section.insert_or_assign(short_name, std::move(value)); });
}

void KeyReader::section(std::string_view name, std::string_view) {
  section_ = name;
  const toml::node* node = root_.get(name);
  table_ = node == nullptr ? nullptr : node->as_table();
}

const toml::node* KeyReader::find(std::string_view name) const {
  return table_ == nullptr ? nullptr : table_->get(name);
}

void KeyReader::refuse(std::string_view name, const toml::node& node,
                       const std::string& rule) const {
  const std::string full = fmt::format("{}.{}", section_, name);
  const bool set = std::find(overridden_.begin(), overridden_.end(), full) != overridden_.end();
  const std::string place =
      set ? "--set" : fmt::format("{} line {}", origin_, node.source().begin.line);
  throw InvalidArgument(fmt::format("{} = {} ({}): {}", full, value_text(node), place, rule));
}

void KeyReader::key(std::string_view name, std::int64_t& value, const IntegerRule& rule,
                    std::string_view) {
  const toml::node* node = find(name);
  if (node == nullptr) return;
  const auto* number = node->as_integer();
  if (number == nullptr || number->get() < rule.low || number->get() > rule.high) {
    refuse(name, *node, rule_text(rule));
  }
  value = number->get();
}

void KeyReader::key(std::string_view name, int& value, const IntegerRule& rule,
                    std::string_view meaning) {
  std::int64_t wide = value;
  IntegerRule narrow = rule;
  narrow.high = std::min<std::int64_t>(rule.high, std::numeric_limits<int>::max());
  key(name, wide, narrow, meaning);
  value = static_cast<int>(wide);
}

void KeyReader::key(std::string_view name, double& value, const RealRule& rule, std::string_view) {
  const toml::node* node = find(name);
  if (node == nullptr) return;
  const auto* real = node->as_floating_point();
  const auto* whole = node->as_integer();
  if (real == nullptr && whole == nullptr) refuse(name, *node, rule_text(rule));
  const double number = real != nullptr ? real->get() : static_cast<double>(whole->get());
  if (!obeys(number, rule)) refuse(name, *node, rule_text(rule));
  value = number;
}

void KeyReader::key(std::string_view name, bool& value, std::string_view) {
  const toml::node* node = find(name);
  if (node == nullptr) return;
  if (!node->is_boolean()) refuse(name, *node, "must be true or false");
  value = node->as_boolean()->get();
}

void KeyReader::key(std::string_view name, std::string& value, const TextRule&, std::string_view) {
  const toml::node* node = find(name);
  if (node == nullptr) return;
  if (!node->is_string()) refuse(name, *node, "must be text in quotes");
  value = node->as_string()->get();
}

void KeyReader::key(std::string_view name, std::string& value, const ChoiceRule& rule,
                    std::string_view) {
  const toml::node* node = find(name);
  if (node == nullptr) return;
  const std::string word = node->value_or(std::string());
  if (!node->is_string() ||
      std::find(rule.words.begin(), rule.words.end(), word) == rule.words.end()) {
    refuse(name, *node, "must be one of " + join(rule.words));
  }
  value = word;
}

void KeyReader::key(std::string_view name, std::string& value, const ChoiceOrCountRule& rule,
                    std::string_view) {
  const toml::node* node = find(name);
  if (node == nullptr) return;
  if (const auto* count = node->as_integer(); count != nullptr && count->get() >= 1) {
    value = fmt::format("{}", count->get());
    return;
  }
  const std::string word = node->value_or(std::string());
  if (!node->is_string() ||
      std::find(rule.words.begin(), rule.words.end(), word) == rule.words.end()) {
    refuse(name, *node,
           fmt::format("must be one of {} or a count of at least 1", join(rule.words)));
  }
  value = word;
}

void KeyReader::key(std::string_view name, std::string& value, const LayersRule&,
                    std::string_view) {
  const toml::node* node = find(name);
  if (node == nullptr) return;
  const std::string rule =
      "must be \"auto\", \"uniform\", a list of layer counts such as [3, 3, 2] or a layout string";
  std::string text = node->value_or(std::string());
  if (const auto* list = node->as_array()) {
    for (const toml::node& count : *list) {
      if (!count.is_integer() || count.as_integer()->get() < 0) refuse(name, *node, rule);
      text += fmt::format("{}{}", text.empty() ? "" : ",", count.as_integer()->get());
    }
  } else if (!node->is_string()) {
    refuse(name, *node, rule);
  }
  if (text.empty()) refuse(name, *node, rule);
  if (is_count_list(text)) std::erase(text, ' ');
  value = text;
}

void KeyReader::key(std::string_view name, std::vector<std::string>& value, const TextListRule&,
                    std::string_view) {
  const toml::node* node = find(name);
  if (node == nullptr) return;
  const std::string rule = "must be a list of texts, such as [\"a\", \"b\"]";
  std::vector<std::string> texts;
  if (const auto* list = node->as_array()) {
    for (const toml::node& text : *list) {
      if (!text.is_string()) refuse(name, *node, rule);
      texts.push_back(text.as_string()->get());
    }
  } else if (node->is_string()) {
    texts.push_back(node->as_string()->get());
  } else {
    refuse(name, *node, rule);
  }
  std::erase(texts, std::string());  // an empty text clears the list
  value = std::move(texts);
}

namespace {

template <typename Enum, std::size_t N>
const NamedValue<Enum>* find_name(const toml::node& node, const NamedValue<Enum> (&names)[N]) {
  const std::string word = node.value_or(std::string());
  const auto* entry = std::find_if(std::begin(names), std::end(names),
                                   [&](const auto& named) { return named.name == word; });
  return node.is_string() && entry != std::end(names) ? entry : nullptr;
}

}  // namespace

void KeyReader::key(std::string_view name, DType& value, std::string_view) {
  const toml::node* node = find(name);
  if (node == nullptr) return;
  const auto* entry = find_name(*node, kDTypeNames);
  if (entry == nullptr) refuse(name, *node, "must be one of float32, float64, bfloat16");
  value = entry->value;
}

void KeyReader::key(std::string_view name, Recompute& value, std::string_view) {
  const toml::node* node = find(name);
  if (node == nullptr) return;
  const auto* entry = find_name(*node, kRecomputeNames);
  if (entry == nullptr) refuse(name, *node, "must be one of none, selective, full");
  value = entry->value;
}

}  // namespace sluice
