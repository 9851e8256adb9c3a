// suggest.h - "did you mean": the names nearest to one that is not known.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace sluice {

/// Edits (insert, delete, replace, swap of neighbours) that turn one text into the other.
int edit_distance(std::string_view a, std::string_view b);

/// Up to `max_names` of `names` that a typing error may have turned into `name`, nearest first,
/// ties in the order given. Empty when nothing is near.
std::vector<std::string> nearest_names(std::string_view name, const std::vector<std::string>& names,
                                       int max_names = 3);

/// "; did you mean a, b or c?", or nothing when nothing is near.
std::string did_you_mean(std::string_view name, const std::vector<std::string>& names);

}  // namespace sluice
