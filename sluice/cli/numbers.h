// numbers.h - options whose values are checked with messages that name the option, the value and
// the rule. Read next: options.h.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace sluice::cli {

/// A whole number of at least `least`. Throws: InvalidArgument naming `option`.
int parse_whole(std::string_view option, std::string_view text, int least);

/// A finite number of 0 or more. Throws: InvalidArgument naming `option`.
double parse_number(std::string_view option, std::string_view text);

/// Adds an option that is read by parse_whole(). `value` outlives the parse.
CLI::Option* add_whole(CLI::App& app, const std::string& name, int& value, int least,
                       const std::string& description);

/// Adds an option that takes one of `choices`; the error lists them. `value` outlives the parse.
CLI::Option* add_choice(CLI::App& app, const std::string& name, std::string& value,
                        const std::vector<std::string>& choices, const std::string& description);

}  // namespace sluice::cli
