#include "sluice/train/suggest.h"

#include <algorithm>
#include <utility>

namespace sluice {

int edit_distance(std::string_view a, std::string_view b) {
  // Rows i-2, i-1 and i of the usual table; the oldest is needed for swaps.
  std::vector<int> before(b.size() + 1), above(b.size() + 1), row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) above[j] = static_cast<int>(j);
  for (std::size_t i = 1; i <= a.size(); ++i) {
    row[0] = static_cast<int>(i);
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const int replace = above[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      row[j] = std::min({replace, above[j] + 1, row[j - 1] + 1});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        row[j] = std::min(row[j], before[j - 2] + 1);
      }
    }
    std::swap(before, above);
    std::swap(above, row);
  }
  return above[b.size()];
}

std::vector<std::string> nearest_names(std::string_view name, const std::vector<std::string>& names,
                                       int max_names) {
  const int limit = std::max<int>(2, static_cast<int>(name.size()) / 3);
  std::vector<std::pair<int, std::string>> near;
  for (const std::string& candidate : names) {
    const int distance = edit_distance(name, candidate);
    if (distance <= limit) near.emplace_back(distance, candidate);
  }
  std::stable_sort(near.begin(), near.end(),
                   [](const auto& x, const auto& y) { return x.first < y.first; });
  std::vector<std::string> result;
  for (auto& [distance, candidate] : near) {
    if (static_cast<int>(result.size()) == max_names) break;
    result.push_back(std::move(candidate));
  }
  return result;
}

std::string did_you_mean(std::string_view name, const std::vector<std::string>& names) {
  const std::vector<std::string> near = nearest_names(name, names);
  if (near.empty()) return "";
  std::string text = "; did you mean " + near.front();
  for (std::size_t i = 1; i < near.size(); ++i) {
    text += (i + 1 == near.size() ? " or " : ", ") + near[i];
  }
  return text + "?";
}

}  // namespace sluice
