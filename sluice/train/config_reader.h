// config_reader.h - TOML tables into the members of RunConfig, with errors that say where. Internal
// to config.cc.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "sluice/train/config_keys.h"

namespace sluice {

/// Throws MalformedToml. toml++ has assertions that malformed text can reach; they must neither
/// abort nor, as they would with NDEBUG, become assumptions of the optimizer.
[[noreturn]] void refuse_malformed_toml();

}  // namespace sluice

#undef NDEBUG
#define TOML_ASSERT(condition) ((condition) ? void() : ::sluice::refuse_malformed_toml())
#define TOML_HEADER_ONLY 1
#include <toml++/toml.h>

namespace sluice {

/// Text that toml++ gave up on without saying where.
struct MalformedToml {};

/// What kind of value a key takes: what a bare word after --set means depends on it.
enum class KeyKind : std::uint8_t { kValue, kText, kTextOrCount, kTextOrList };

/// Visitor: collects the full names ("section.key") in order.
class KeyLister {
 public:
  struct Key {
    std::string section;
    std::string full;
    KeyKind kind;
  };

  void section(std::string_view name, std::string_view) { section_ = name; }
  template <typename T>
  void key(std::string_view name, const T&, std::string_view) {
    const bool word = std::is_enum_v<T>;
    add(name, word ? KeyKind::kText : KeyKind::kValue);
  }
  template <typename T, typename Rule>
  void key(std::string_view name, const T&, const Rule&, std::string_view) {
    add(name, kind_of(Rule{}));
  }

  const std::vector<Key>& keys() const { return keys_; }

 private:
  static KeyKind kind_of(const IntegerRule&) { return KeyKind::kValue; }
  static KeyKind kind_of(const RealRule&) { return KeyKind::kValue; }
  static KeyKind kind_of(const ChoiceRule&) { return KeyKind::kText; }
  static KeyKind kind_of(const TextRule&) { return KeyKind::kText; }
  static KeyKind kind_of(const ChoiceOrCountRule&) { return KeyKind::kTextOrCount; }
  static KeyKind kind_of(const TextListRule&) { return KeyKind::kTextOrList; }
  static KeyKind kind_of(const LayersRule&) { return KeyKind::kTextOrList; }
  void add(std::string_view name, KeyKind kind);

  std::string section_;
  std::vector<Key> keys_;
};

/// The keys of config.toml.
const std::vector<KeyLister::Key>& config_keys();

/// Parses TOML. Throws: InvalidArgument with `origin`, line and column.
toml::table parse_toml_table(std::string_view text, const std::string& origin);

/// Throws: InvalidArgument for the first section or key that does not exist.
void refuse_unknown_keys(const toml::table& root, const std::string& origin);

/// Puts "section.key=value" into `root`. Throws: InvalidArgument.
void apply_override(toml::table& root, std::string_view text);

/// Visitor: fills members from a table; members whose key is absent are left alone.
class KeyReader {
 public:
  /// `overridden`: full names that came from --set, for the errors.
  KeyReader(const toml::table& root, std::string origin, std::vector<std::string> overridden)
      : root_(root), origin_(std::move(origin)), overridden_(std::move(overridden)) {}

  void section(std::string_view name, std::string_view meaning);
  void key(std::string_view name, std::int64_t& value, const IntegerRule& rule, std::string_view);
  void key(std::string_view name, int& value, const IntegerRule& rule, std::string_view);
  void key(std::string_view name, double& value, const RealRule& rule, std::string_view);
  void key(std::string_view name, std::string& value, const TextRule&, std::string_view);
  void key(std::string_view name, std::string& value, const ChoiceRule& rule, std::string_view);
  void key(std::string_view name, std::string& value, const LayersRule&, std::string_view);
  void key(std::string_view name, std::string& value, const ChoiceOrCountRule& rule,
           std::string_view);
  void key(std::string_view name, std::vector<std::string>& value, const TextListRule&,
           std::string_view);
  void key(std::string_view name, bool& value, std::string_view);
  void key(std::string_view name, DType& value, std::string_view);
  void key(std::string_view name, Recompute& value, std::string_view);

 private:
  const toml::node* find(std::string_view name) const;
  [[noreturn]] void refuse(std::string_view name, const toml::node& node,
                           const std::string& rule) const;

  const toml::table& root_;
  std::string origin_;
  std::vector<std::string> overridden_;
  std::string section_;
  const toml::table* table_ = nullptr;
};

}  // namespace sluice
