#include "sluice/sim/cost_file.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "sluice/common/errors.h"

namespace sluice {
namespace {

using nlohmann::json;

constexpr std::array<std::string_view, 16> kKeys = {"unit",
                                                    "forward",
                                                    "backward",
                                                    "backward_input",
                                                    "backward_weight",
                                                    "p2p",
                                                    "vocab_pass",
                                                    "embed_forward",
                                                    "embed_backward",
                                                    "vocab_barrier",
                                                    "forward_slices",
                                                    "backward_slices",
                                                    "backward_input_slices",
                                                    "backward_weight_slices",
                                                    "exchange_kv",
                                                    "exchange_q"};

struct Unit {
  std::string_view name;
  double seconds;
};
constexpr std::array<Unit, 4> kUnits = {{{"s", 1.0}, {"ms", 1e-3}, {"us", 1e-6}, {"ns", 1e-9}}};

// The value on one line, and not longer than a message can bear.
std::string shown(const json& value) {
  std::string text = value.dump(-1, ' ', true, json::error_handler_t::replace);
  return text.size() <= 60 ? text : text.substr(0, 57) + "...";
}

json parse_object(std::string_view text) {
  std::set<std::string> keys;
  const auto note_keys = [&](int depth, json::parse_event_t event, json& parsed) {
    if (depth == 1 && event == json::parse_event_t::key && !keys.insert(parsed).second) {
      throw InvalidArgument(
          fmt::format("{} occurs twice in the costs file: keep one", shown(parsed)));
    }
    return true;
  };
  const json object = json::parse(text.begin(), text.end(), note_keys, /*allow_exceptions=*/false);
  if (!object.is_object()) {
    throw InvalidArgument(
        "a costs file must be one JSON object, such as {\"unit\": \"us\", \"forward\": 10, "
        "\"backward\": 20}");
  }
  for (const auto& item : object.items()) {
    if (std::find(kKeys.begin(), kKeys.end(), item.key()) != kKeys.end()) continue;
    throw InvalidArgument(fmt::format("{} is not a key of a costs file: use {}",
                                      shown(json(item.key())), fmt::join(kKeys, ", ")));
  }
  return object;
}

double read_number(std::string_view key, const json& value) {
  const double number = value.is_number() ? value.get<double>() : -1.0;
  if (!std::isfinite(number) || number < 0.0 || number > kLongestTime) {
    throw InvalidArgument(
        fmt::format("\"{}\": {} must be a number from 0 to {}", key, shown(value), kLongestTime));
  }
  return number;
}

// One per rank; empty when the key is missing.
std::vector<double> read_times(const json& file, std::string_view key, int num_ranks) {
  const auto found = file.find(key);
  if (found == file.end()) return {};
  const auto count = static_cast<std::size_t>(num_ranks);
  if (!found->is_array()) return std::vector<double>(count, read_number(key, *found));
  if (found->size() != count) {
    throw InvalidArgument(
        fmt::format("\"{}\" has {} values for {} ranks: give one number, or one for each rank", key,
                    found->size(), num_ranks));
  }
  std::vector<double> times;
  for (const json& value : *found) times.push_back(read_number(key, value));
  return times;
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

// One value for all ranks stays one, so that an option can replace it.
void read_messages(const json& file, int num_ranks, RankTimes& times) {
  const std::vector<double> messages = read_times(file, "p2p", num_ranks);
  if (messages.empty()) return;
  times.message = messages.front();
  const auto differs = [&](double message) { return message != times.message; };
  if (std::any_of(messages.begin(), messages.end(), differs)) times.message_of_rank = messages;
}

std::vector<double> read_slices(const json& file, std::string_view key) {
  const auto found = file.find(key);
  if (found == file.end()) return {};
  if (!found->is_array() || found->empty()) {
    throw InvalidArgument(fmt::format("\"{}\" must be an array with the time of each slice", key));
  }
  std::vector<double> times;
  for (const json& value : *found) times.push_back(read_number(key, value));
  return times;
}

// Whether the file tells slices one by one, then with all that belongs to them.
std::optional<SliceTimes> read_slice_times(const json& file) {
  SliceTimes times;
  times.forward = read_slices(file, "forward_slices");
  times.backward = read_slices(file, "backward_slices");
  times.backward_input = read_slices(file, "backward_input_slices");
  times.backward_weight = read_slices(file, "backward_weight_slices");
  const bool has_input = !times.backward_input.empty();
  const bool has_weight = !times.backward_weight.empty();
  if (times.forward.empty() && times.backward.empty() && !has_input && !has_weight) return {};
  if (times.forward.empty() || has_input != has_weight || has_input != times.backward.empty()) {
    throw InvalidArgument(
        "times of slices need \"forward_slices\" and either \"backward_slices\", or both "
        "\"backward_input_slices\" and \"backward_weight_slices\"");
  }
  for (const std::string_view key : {"forward", "backward", "backward_input", "backward_weight"}) {
    if (!file.contains(key)) continue;
    throw InvalidArgument(fmt::format(
        "\"{}\" has no place beside \"forward_slices\": give times of whole microbatches or of "
        "slices",
        key));
  }
  return times;
}

bool has_kind(const Schedule& schedule, std::initializer_list<PassKind> kinds) {
  for (const std::vector<Pass>& passes : schedule.ranks) {
    for (const Pass& pass : passes) {
      if (std::find(kinds.begin(), kinds.end(), pass.kind) != kinds.end()) return true;
    }
  }
  return false;
}

void check_unused(std::string_view key, const std::vector<double>& times, const Schedule& schedule,
                  std::initializer_list<PassKind> kinds) {
  if (std::all_of(times.begin(), times.end(), [](double time) { return time == 0.0; })) return;
  if (has_kind(schedule, kinds)) return;
  throw InvalidArgument(fmt::format(
      "\"{}\" has a time, but schedule {} has no such passes: set it to 0 and count the vocabulary "
      "layers in the forward and backward of their ranks",
      key, schedule.name));
}

}  // namespace

CostFile parse_cost_file(std::string_view text, int num_ranks) {
  SLUICE_CHECK(num_ranks >= 1, "{} ranks", num_ranks);
  const json file = parse_object(text);
  CostFile costs;
  read_unit(file, costs);
  costs.slices = read_slice_times(file);
  if (!costs.slices) {
    costs.times.forward = read_times(file, "forward", num_ranks);
    if (costs.times.forward.empty()) {
      throw InvalidArgument("a costs file needs \"forward\", one number or one for each rank");
    }
    read_backward(file, num_ranks, costs.times);
  }
  read_messages(file, num_ranks, costs.times);
  for (const auto& [key, value] :
       {std::pair("exchange_kv", &costs.exchange_kv), std::pair("exchange_q", &costs.exchange_q)}) {
    if (file.contains(key)) *value = read_number(key, file[key]);
  }
  costs.vocab_pass = read_times(file, "vocab_pass", num_ranks);
  costs.embed_forward = read_times(file, "embed_forward", num_ranks);
  costs.embed_backward = read_times(file, "embed_backward", num_ranks);
  costs.vocab_barrier = read_times(file, "vocab_barrier", num_ranks);
  return costs;
}

void check_fits(const CostFile& costs, const Schedule& schedule) {
  const bool has_backward =
      costs.slices ? !costs.slices->backward.empty() : !costs.times.backward.empty();
  if (has_backward && has_kind(schedule, {PassKind::kBackwardInput, PassKind::kBackwardWeight})) {
    throw InvalidArgument(
        fmt::format("schedule {} splits the backward: give \"backward_input\" and "
                    "\"backward_weight\" instead of "
                    "\"backward\"",
                    schedule.name));
  }
  const std::initializer_list<PassKind> output{PassKind::kVocabForward, PassKind::kVocabBackward};
  check_unused("vocab_pass", costs.vocab_pass, schedule, output);
  check_unused("vocab_barrier", costs.vocab_barrier, schedule, output);
  check_unused("embed_forward", costs.embed_forward, schedule, {PassKind::kEmbedForward});
  check_unused("embed_backward", costs.embed_backward, schedule, {PassKind::kEmbedBackward});
}

void add_vocab_costs(const CostFile& costs, VocabForm form, CostModel& cost) {
  const auto slices = static_cast<std::size_t>(cost.num_slices);
  const auto ticks_of = [&](double time) {
    return static_cast<std::int64_t>(std::llround(time / cost.unit_per_tick));
  };
  const auto fill = [&](PassKind kind, const std::vector<double>& times, double share) {
    std::vector<std::int64_t>& row = cost.ticks[static_cast<std::size_t>(kind)];
    row.assign(static_cast<std::size_t>(cost.num_stages) * slices, 0);
    for (std::size_t i = 0; i < times.size() * slices; ++i) {
      const std::int64_t whole = ticks_of(times[i / slices]) / cost.num_slices;
      row[i] = std::llround(static_cast<double>(whole) * share);
    }
  };
  const double forward_share = form == VocabForm::kParallel1 ? 1.0 / 3.0 : 2.0 / 3.0;
  fill(PassKind::kVocabForward, costs.vocab_pass, forward_share);
  fill(PassKind::kVocabBackward, costs.vocab_pass, 1.0 - forward_share);
  fill(PassKind::kEmbedForward, costs.embed_forward, 1.0);
  fill(PassKind::kEmbedBackward, costs.embed_backward, 1.0);
  const auto set = [&](Collective kind, std::int64_t ticks) {
    cost.collective_ticks[static_cast<std::size_t>(kind)] = ticks;
  };
  std::int64_t message = cost.message_ticks;
  for (const std::int64_t ticks : cost.message_ticks_of_rank) message = std::max(message, ticks);
  double longest = 0.0;
  for (const double time : costs.vocab_barrier) longest = std::max(longest, time);
  const std::int64_t barrier = ticks_of(longest);
  set(Collective::kReduceEmbedding, message);
  set(Collective::kBroadcastHidden, message);
  set(Collective::kGatherStatistics, barrier);
  // One barrier in parallel-2: the gradient leaves together with the statistics.
  set(Collective::kReduceHiddenGradient, form == VocabForm::kParallel1 ? barrier : 0);
  set(Collective::kBroadcastEmbeddingGradient, message);
}

}  // namespace sluice
