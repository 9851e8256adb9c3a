#include "sluice/cli/help.h"

#include <fmt/format.h>

#include <algorithm>
#include <sstream>
#include <utility>
#include <vector>

namespace sluice::cli {
namespace {

constexpr std::size_t kColumns = 100;
constexpr std::size_t kMaxLeft = 28;

struct Entry {
  std::string left;
  std::string right;
};

/// `text` in lines that begin at column `indent`; the first line is already there.
std::string wrap(const std::string& text, std::size_t indent) {
  std::istringstream words(text);
  std::string result;
  std::size_t column = indent;
  for (std::string word; words >> word;) {
    if (column > indent && column + 1 + word.size() > kColumns) {
      result += "\n" + std::string(indent, ' ');
      column = indent;
    }
    if (column > indent) {
      result += ' ';
      ++column;
    }
    result += word;
    column += word.size();
  }
  return result;
}

std::string type_of(const CLI::Option& option) {
  const std::string type = option.get_type_name();
  return type.substr(0, type.find(':'));  // without its validators
}

/// A positional is shown as what it stands for, "CONFIG.toml", where its type says more than
/// "TEXT".
std::string positional_name(const CLI::Option& option) {
  const std::string type = type_of(option);
  return type.empty() || type == "TEXT" ? option.get_name(true) : type;
}

Entry describe(const CLI::Option& option) {
  const bool positional = option.get_positional();
  Entry entry{positional ? positional_name(option) : option.get_name(), option.get_description()};
  const std::string type = type_of(option);
  if (!positional && !type.empty()) entry.left += " " + type;
  if (option.get_required()) entry.right += " (required)";
  if (!option.get_default_str().empty()) {
    entry.right += fmt::format(" (default {})", option.get_default_str());
  }
  return entry;
}

using Group = std::pair<std::string, std::vector<Entry>>;

void add(std::vector<Group>& groups, const std::string& name, Entry entry) {
  auto at = std::find_if(groups.begin(), groups.end(),
                         [&](const Group& group) { return group.first == name; });
  if (at == groups.end()) at = groups.insert(groups.end(), Group{name, {}});
  at->second.push_back(std::move(entry));
}

std::string usage(const CLI::App& app, const std::string& name) {
  std::string text = name;
  bool has_options = false;
  for (const CLI::Option* option : app.get_options()) {
    if (option->get_positional()) {
      text += " " + positional_name(*option);
    } else {
      has_options = has_options || option != app.get_help_ptr();
    }
  }
  if (!app.get_subcommands({}).empty()) text += " COMMAND ...";
  return has_options && app.get_subcommands({}).empty() ? text + " [options]" : text;
}

}  // namespace

std::string HelpFormatter::make_help(const CLI::App* app, std::string name,
                                     CLI::AppFormatMode /*mode*/) const {
  std::vector<Group> groups;
  for (const CLI::App* command : app->get_subcommands({})) {
    add(groups, "Commands", {command->get_name(), command->get_description()});
  }
  // The help flag comes first in CLI11's list; here it closes the last group.
  for (const CLI::Option* option : app->get_options()) {
    if (option == app->get_help_ptr() || option == app->get_version_ptr()) continue;
    if (!option->get_group().empty()) add(groups, option->get_group(), describe(*option));
  }
  for (const CLI::Option* option : {app->get_help_ptr(), app->get_version_ptr()}) {
    if (option != nullptr) add(groups, "Help", describe(*option));
  }

  std::size_t left = 0;
  for (const Group& group : groups) {
    for (const Entry& entry : group.second) left = std::max(left, entry.left.size());
  }
  left = std::min(left, kMaxLeft) + 4;

  std::string text = fmt::format("{}\n\nUsage: {}\n", wrap(app->get_description(), 0),
                                 wrap(usage(*app, name), std::string("Usage: ").size()));
  for (const Group& group : groups) {
    text += fmt::format("\n{}\n", group.first);
    for (const Entry& entry : group.second) {
      const bool fits = entry.left.size() + 4 <= left;
      text += fmt::format("  {:<{}}", entry.left, left - 2);
      if (!fits) text += "\n" + std::string(left, ' ');
      text += wrap(entry.right, left) + "\n";
    }
  }
  if (!app->get_footer().empty()) text += fmt::format("\nExample\n  {}\n", app->get_footer());
  return text;
}

}  // namespace sluice::cli
