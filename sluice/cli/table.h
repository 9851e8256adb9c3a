// table.h - columns of text.
#pragma once

#include <string>
#include <vector>

namespace sluice::cli {

/// Rows with their columns aligned to the left, two blanks apart, without blanks at line ends.
/// Every row ends with a newline; rows may have fewer cells than others.
std::string table(const std::vector<std::vector<std::string>>& rows);

}  // namespace sluice::cli
