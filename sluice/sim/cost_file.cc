#include "sluice/sim/cost_file.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <vector>

#include "sluice/common/errors.h"

namespace sluice {
namespace {

using nlohmann::json;

constexpr std::array<std::string_view, 9> kKeys = {
    "forward",    "backward",      "backward_input", "backward_weight", "p2p",
    "vocab_pass", "embed_forward", "embed_backward", "vocab_barrier"};

struct Unit {
  std::string_view name;
  double seconds;
};
constexpr std::array<Unit, 4> kUnits = {{{"s", 1.0}, {"ms", 1e-3}, {"us", 1e-6}, {"ns", 1e-9}}};

std::string shown(const json& value) {
  std::string text = value.dump(-1, ' ', true, json::error_handler_t::replace);
  return text.size() <= 60 ? text : text.substr(0, 57) + "...";
}

double read_number(std::string_view key, const json& value) {
  const double number = value.is_number() ? value.get<double>() : -1.0;
  if (number < 0.0 || !std::isfinite(number)) {
    throw InvalidArgument(
        fmt::format("\"{}\": {} must be a number of 0 or more", key, shown(value)));
  }
  return number;
}

/// One number, or one per rank; empty when the key is missing.
std::vector<double> read_times(const json& file, std::string_view key, int num_ranks) {
  const auto found = file.find(key);
  if (found == file.end()) return {};
  if (!found->is_array()) return {read_number(key, *found)};
  if (found->size() != static_cast<std::size_t>(num_ranks)) {
    throw InvalidArgument(fmt::format("\"{}\" has {} values for {} ranks: give one number, or one "
                                      "for each rank",
                                      key, found->size(), num_ranks));
  }
  std::vector<double> times;
  for (const json& value : *found) times.push_back(read_number(key, value));
  return times;
}

void check_keys(const json& file) {
  for (const auto& item : file.items()) {
    const std::string& key = item.key();
    if (key == "unit" || std::find(kKeys.begin(), kKeys.end(), key) != kKeys.end()) continue;
    throw InvalidArgument(fmt::format("\"{}\" is not a key of a costs file: use unit, {}",
                                      shown(json(key)).substr(1, key.size()),
                                      fmt::join(kKeys, ", ")));
  }
}

void read_unit(const json& file, CostFile& costs) {
  const auto found = file.find("unit");
  if (found == file.end()) return;
  for (const Unit& unit : kUnits) {
    if (found->is_string() && found->get_ref<const std::string&>() == unit.name) {
      costs.unit = unit.name;
      costs.seconds_per_unit = unit.seconds;
      return;
    }
  }
  throw InvalidArgument(fmt::format("\"unit\": {} must be s, ms, us or ns", shown(*found)));
}

void read_backward(const json& file, int num_ranks, RankTimes& times) {
  times.backward = read_times(file, "backward", num_ranks);
  times.backward_input = read_times(file, "backward_input", num_ranks);
  times.backward_weight = read_times(file, "backward_weight", num_ranks);
  const bool has_split = !times.backward_input.empty() && !times.backward_weight.empty();
  const bool has_part = !times.backward_input.empty() || !times.backward_weight.empty();
  if (times.backward.empty() ? !has_split : has_part) {
    throw InvalidArgument(
        "a costs file needs either \"backward\", or both \"backward_input\" and "
        "\"backward_weight\"");
  }
}

double read_message(const json& file, int num_ranks) {
  const std::vector<double> times = read_times(file, "p2p", num_ranks);
  if (times.empty()) return 0.0;
  if (std::adjacent_find(times.begin(), times.end(), std::not_equal_to<>()) != times.end()) {
    throw InvalidArgument(fmt::format("\"p2p\": {} must be the same for all ranks: give one number",
                                      shown(file.at("p2p"))));
  }
  return times.front();
}

void refuse_vocabulary(const json& file, int num_ranks) {
  for (const char* key : {"vocab_pass", "embed_forward", "embed_backward", "vocab_barrier"}) {
    for (const double time : read_times(file, key, num_ranks)) {
      if (time == 0.0) continue;
      throw InvalidArgument(
          fmt::format("\"{}\": {} cannot be used, since vocabulary passes are not built yet: set it "
                      "to 0 and count the output layer in the last rank's forward and backward",
                      key, time));
    }
  }
}

}  // namespace

CostFile parse_cost_file(std::string_view text, int num_ranks) {
  const json file = json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!file.is_object()) {
    throw InvalidArgument(
        "a costs file must be one JSON object, such as {\"unit\": \"us\", \"forward\": 10, "
        "\"backward\": 20}");
  }
  check_keys(file);
  CostFile costs;
  read_unit(file, costs);
  costs.times.forward = read_times(file, "forward", num_ranks);
  if (costs.times.forward.empty()) {
    throw InvalidArgument("a costs file needs \"forward\", one number or one for each rank");
  }
  read_backward(file, num_ranks, costs.times);
  costs.times.message = read_message(file, num_ranks);
  refuse_vocabulary(file, num_ranks);
  return costs;
}

}  // namespace sluice
