#include "sluice/model/layout.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <limits>
#include <numeric>
#include <string>

#include "sluice/common/errors.h"
#include "sluice/model/accounting.h"

namespace sluice {
namespace {

Layout from_counts(const std::vector<int>& counts) {
  Layout layout;
  int first = 0;
  for (std::size_t stage = 0; stage < counts.size(); ++stage) {
    layout.push_back(StageLayers{.first_layer = first,
                                 .num_layers = counts[stage],
                                 .has_embedding = stage == 0,
                                 .has_head = stage + 1 == counts.size()});
    first += counts[stage];
  }
  return layout;
}

std::vector<int> uniform_counts(int num_layers, int num_stages) {
  std::vector<int> counts;
  for (int stage = 0; stage < num_stages; ++stage) {
    counts.push_back(num_layers / num_stages + (stage < num_layers % num_stages ? 1 : 0));
  }
  return counts;
}

// Layers cost the same everywhere, so the counts of the ranks decide the busiest one: give each
// layer in turn to the rank that is then least busy. That minimises the largest sum of equal items
// on top of fixed costs (embedding, output layer).
std::vector<int> balanced_counts(const ModelConfig& config, const std::vector<int>& rank_of_stage,
                                 std::int64_t sequence_length, bool sharded_vocabulary) {
  const std::size_t num_stages = rank_of_stage.size();
  const auto cost_of = [&](const StageLayers& layers) {
    return stage_flops(config, layers, 1, sequence_length).total();
  };
  const double layer_cost = cost_of({.first_layer = 0, .num_layers = 1});
  std::vector<double> stage_cost(num_stages, 0.0);
  if (!sharded_vocabulary) {
    stage_cost.front() += cost_of({.has_embedding = true});
    stage_cost.back() += cost_of({.has_head = true});
  }

  const int num_ranks = 1 + *std::max_element(rank_of_stage.begin(), rank_of_stage.end());
  std::vector<double> rank_cost(static_cast<std::size_t>(num_ranks), 0.0);
  std::vector<bool> rank_used(static_cast<std::size_t>(num_ranks), false);
  for (std::size_t stage = 0; stage < num_stages; ++stage) {
    rank_cost[static_cast<std::size_t>(rank_of_stage[stage])] += stage_cost[stage];
    rank_used[static_cast<std::size_t>(rank_of_stage[stage])] = true;
  }

  std::vector<int> counts(num_stages, 0);
  for (std::int64_t layer = 0; layer < config.num_hidden_layers; ++layer) {
    std::size_t best_rank = rank_cost.size();
    for (std::size_t rank = 0; rank < rank_cost.size(); ++rank) {
      if (rank_used[rank] &&
          (best_rank == rank_cost.size() || rank_cost[rank] < rank_cost[best_rank])) {
        best_rank = rank;
      }
    }
    std::size_t best_stage = num_stages;
    for (std::size_t stage = 0; stage < num_stages; ++stage) {
      if (static_cast<std::size_t>(rank_of_stage[stage]) == best_rank &&
          (best_stage == num_stages || stage_cost[stage] < stage_cost[best_stage])) {
        best_stage = stage;
      }
    }
    rank_cost[best_rank] += layer_cost;
    stage_cost[best_stage] += layer_cost;
    ++counts[best_stage];
  }
  return counts;
}

[[noreturn]] void refuse(std::string_view text, const std::string& rule) {
  throw InvalidArgument(fmt::format("pipeline.layers is \"{}\": {}", text, rule));
}

int parse_count(std::string_view text, std::string_view digits) {
  int count = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), count);
  if (error != std::errc{} || end != digits.data() + digits.size() || count < 0) {
    refuse(text, fmt::format("\"{}\" is not a count of layers", digits));
  }
  return count;
}

std::vector<int> list_counts(std::string_view text, std::string_view compact) {
  std::vector<int> counts;
  while (true) {
    const std::size_t comma = compact.find(',');
    counts.push_back(parse_count(text, compact.substr(0, comma)));
    if (comma == std::string_view::npos) return counts;
    compact.remove_prefix(comma + 1);
  }
}

// "x*3" and "(xy)*3" are repeated in place; the result has neither stars nor parentheses.
constexpr std::size_t kLongestLayout = 1u << 20;

std::string expand_repeats(std::string_view text, std::string_view compact) {
  std::string expanded;
  std::size_t at = 0;
  while (at < compact.size()) {
    std::string unit;
    if (compact[at] == '(') {
      const std::size_t close = compact.find(')', at);
      if (close == std::string_view::npos) refuse(text, "a ( is never closed");
      unit = std::string(compact.substr(at + 1, close - at - 1));
      if (unit.find('(') != std::string::npos) refuse(text, "parentheses do not nest");
      if (unit.find('*') != std::string::npos) {
        unit = expand_repeats(text, unit);
      }
      at = close + 1;
    } else if (compact[at] == ')' || compact[at] == '*') {
      refuse(text, fmt::format("\"{}\" has nothing before it", compact[at]));
    } else {
      unit = std::string(1, compact[at]);
      ++at;
    }
    int repeat = 1;
    if (at < compact.size() && compact[at] == '*') {
      std::size_t end = at + 1;
      while (end < compact.size() && std::isdigit(static_cast<unsigned char>(compact[end])) != 0) {
        ++end;
      }
      repeat = parse_count(text, compact.substr(at + 1, end - at - 1));
      at = end;
    }
    if (unit.size() * static_cast<std::size_t>(repeat) + expanded.size() > kLongestLayout) {
      refuse(text, "it expands to more than a million letters");
    }
    for (int i = 0; i < repeat; ++i) expanded += unit;
  }
  return expanded;
}

std::vector<int> letter_counts(std::string_view text, std::string_view compact) {
  const std::string letters = expand_repeats(text, compact);
  std::vector<int> counts(1, 0);
  std::string order;
  for (const char letter : letters) {
    switch (letter) {
      case '|':
        counts.push_back(0);
        break;
      case 't':
        ++counts.back();
        order += letter;
        break;
      case 'E':
      case 'L':
        order += letter;
        break;
      case 'm':
        refuse(text, "m (multi-token prediction) is not implemented; use E, t, L and |");
      default:
        refuse(text, fmt::format("the letter {} is unknown; use E, t, L and |", letter));
    }
  }
  const auto times = [&](char letter) { return std::count(order.begin(), order.end(), letter); };
  if (times('E') != 1 || order.front() != 'E' || letters.front() != 'E') {
    refuse(text, "E must stand once, at the start, in the first stage");
  }
  if (times('L') != 1 || order.back() != 'L' || letters.back() != 'L') {
    refuse(text, "L must stand once, at the end, in the last stage");
  }
  return counts;
}

Layout layout_of(std::string_view text, const ModelConfig& config,
                 const std::vector<int>& rank_of_stage, std::int64_t sequence_length,
                 bool sharded_vocabulary) {
  SLUICE_CHECK(!rank_of_stage.empty());
  const auto num_stages = static_cast<int>(rank_of_stage.size());
  const auto num_layers = static_cast<int>(config.num_hidden_layers);
  std::string compact;
  for (const char letter : text) {
    if (std::isspace(static_cast<unsigned char>(letter)) == 0) compact += letter;
  }
  if (compact == "auto")
    return from_counts(balanced_counts(config, rank_of_stage, sequence_length, sharded_vocabulary));
  if (compact == "uniform") return from_counts(uniform_counts(num_layers, num_stages));

  std::vector<int> counts;
  if (!compact.empty() && std::isdigit(static_cast<unsigned char>(compact.front())) != 0) {
    counts = list_counts(text, compact);
  } else if (compact.find_first_of("EtL|") != std::string::npos) {
    std::erase(compact, ',');
    counts = letter_counts(text, compact);
  } else {
    refuse(text,
           "use \"auto\", \"uniform\", counts such as \"3,3,2\", or letters such as "
           "\"Ett|ttL\"");
  }
  if (static_cast<int>(counts.size()) != num_stages) {
    refuse(text, fmt::format("it has {} stages, and ranks times chunks make {}", counts.size(),
                             num_stages));
  }
  const std::int64_t total = std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
  if (total != num_layers) {
    refuse(text, fmt::format("its layers add up to {}, and model.num_hidden_layers is {}", total,
                             num_layers));
  }
  return from_counts(counts);
}

}  // namespace

Layout parse_layout(std::string_view text, const ModelConfig& config,
                    const std::vector<int>& rank_of_stage, std::int64_t sequence_length,
                    bool sharded_vocabulary) {
  Layout layout = layout_of(text, config, rank_of_stage, sequence_length, sharded_vocabulary);
  if (sharded_vocabulary) {
    layout.front().has_embedding = false;
    layout.back().has_head = false;
    layout.back().has_final_norm = true;
  }
  return layout;
}

}  // namespace sluice
