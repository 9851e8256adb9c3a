// help.h - the form that the help of every command has.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace sluice::cli {

/// Writes help in one form whatever the version of CLI11 (tests hold it as golden files): the
/// description, the usage line, the commands, the options by group in the order they were added,
/// and the footer as an example. Lines have at most 100 columns where words allow.
class HelpFormatter : public CLI::FormatterBase {
 public:
  std::string make_help(const CLI::App* app, std::string name,
                        CLI::AppFormatMode mode) const override;
};

}  // namespace sluice::cli
