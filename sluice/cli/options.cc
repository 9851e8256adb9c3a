#include "sluice/cli/options.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <string_view>
#include <utility>
#include <vector>

#include "sluice/cli/files.h"
#include "sluice/cli/numbers.h"
#include "sluice/common/errors.h"
#include "sluice/program/lower.h"
#include "sluice/schedule/offload.h"
#include "sluice/schedule/registry.h"
#include "sluice/sim/cost_file.h"
#include "sluice/sim/exchange_cost.h"
#include "sluice/sim/offload_schedule.h"
#include "sluice/sim/vocab_plan.h"

namespace sluice::cli {
namespace {

// Names that are part of the command line already; each becomes a generator of the library.
constexpr std::array<std::string_view, 3> kUnbuiltSchedules = {"po", "po-h", "po-f"};

[[noreturn]] void refuse_unbuilt(std::string_view what, std::string_view instead) {
  throw InvalidArgument(fmt::format("{} is not built yet: {}", what, instead));
}

std::vector<std::string_view> schedule_names() {
  std::vector<std::string_view> names;
  for (const ScheduleInfo& info : schedule_library()) names.push_back(info.name);
  return names;
}

void check_built(const ScheduleOptions& options) {
  const bool is_listed = std::find(kUnbuiltSchedules.begin(), kUnbuiltSchedules.end(),
                                   options.name) != kUnbuiltSchedules.end();
  const std::vector<std::string_view> names = schedule_names();
  if (is_listed && std::find(names.begin(), names.end(), options.name) == names.end()) {
    refuse_unbuilt("schedule " + options.name,
                   fmt::format("choose one of {}", fmt::join(names, ", ")));
  }
  find_schedule(options.name);
}

VocabForm vocab_form(const std::string& text) {
  return text == "parallel-1"   ? VocabForm::kParallel1
         : text == "parallel-2" ? VocabForm::kParallel2
                                : VocabForm::kLast;
}

RankTimes parse_times(const std::string& text) {
  std::vector<double> values;
  std::string_view rest = text;
  for (bool more = true; more;) {
    const std::size_t comma = rest.find(',');
    more = comma != std::string_view::npos;
    values.push_back(parse_number("--times", rest.substr(0, comma)));
    if (more) rest.remove_prefix(comma + 1);
  }
  if (values.size() != 3) {
    throw InvalidArgument(
        fmt::format("--times {}: must be three numbers F,I,W, such as 1,1,1", text));
  }
  if (values[0] + values[1] + values[2] == 0.0) {
    throw InvalidArgument(fmt::format("--times {}: one of them must be above 0", text));
  }
  RankTimes times;
  times.forward = {values[0]};
  times.backward_input = {values[1]};
  times.backward_weight = {values[2]};
  return times;
}

CostFile read_costs(const ScheduleOptions& options) {
  const std::string text = read_input(options.costs_path);
  try {
    return parse_cost_file(text, options.ranks);
  } catch (const InvalidArgument& error) {
    throw InvalidArgument(fmt::format("--costs {}: {}", options.costs_path, error.what()));
  }
}

bool any_positive(const std::vector<double>& times) {
  return std::any_of(times.begin(), times.end(), [](double time) { return time > 0.0; });
}

void check_costs(const ScheduleOptions& options, const CostFile& costs, const Schedule& schedule) {
  try {
    check_fits(costs, schedule);
  } catch (const InvalidArgument& error) {
    throw InvalidArgument(fmt::format("--costs {}: {}", options.costs_path, error.what()));
  }
  const RankTimes& times = costs.times;
  if (!costs.slices && !any_positive(times.forward) && !any_positive(times.backward) &&
      !any_positive(times.backward_input) && !any_positive(times.backward_weight)) {
    throw InvalidArgument(
        fmt::format("--costs {}: one of the times must be above 0", options.costs_path));
  }
}

CostModel make_cost(const ScheduleOptions& options, const CostFile& costs,
                    const Placement& placement) {
  const RankTimes& times = costs.times;
  if (options.attention_ratio) {
    return cost_from_attention(times.forward[0], *options.attention_ratio, times.message, placement,
                               options.slices);
  }
  if (!costs.slices) return cost_from_rank_times(times, placement, options.slices);
  SliceTimes slices = *costs.slices;
  if (slices.forward.size() != static_cast<std::size_t>(options.slices)) {
    throw InvalidArgument(
        fmt::format("--costs {}: \"forward_slices\" has {} times: use --slices {}",
                    options.costs_path, slices.forward.size(), slices.forward.size()));
  }
  slices.message = times.message;
  CostModel cost = cost_from_slice_times(slices, placement, options.slices);
  if (!times.message_of_rank.empty()) {
    throw InvalidArgument(fmt::format(
        "--costs {}: \"p2p\" must be one number beside times of slices", options.costs_path));
  }
  return cost;
}

/// The link's times are those of a whole microbatch and all layers of a rank, as the others are.
ExchangeLink make_link(const CostFile& costs, const CostModel& cost, const Placement& placement) {
  const double parts =
      static_cast<double>(cost.num_slices) * static_cast<double>(placement.stages_of(0).size());
  const auto ticks = [&](double time, double share) {
    return std::llround(time / cost.unit_per_tick / share);
  };
  return {ticks(costs.exchange_kv, 2.0 * parts), ticks(costs.exchange_q, parts)};
}

ExchangeMode exchange_mode(const std::string& name) {
  if (name == "pairwise") return ExchangeMode::kPairwise;
  return name == "balanced" ? ExchangeMode::kBalanced : ExchangeMode::kNone;
}

/// F = I = W everywhere and messages for nothing: what generators assume without being told.
bool is_unit_cost(const RankTimes& times) {
  return times.backward.empty() && times.forward.size() == 1 &&
         times.backward_input == times.forward && times.backward_weight == times.forward &&
         times.message == 0.0 && times.message_of_rank.empty();
}

std::string describe_times(const ScheduleOptions& options, const CostFile& costs) {
  if (!options.costs_path.empty()) return "from " + options.costs_path;
  const RankTimes& times = costs.times;
  if (options.attention_ratio) {
    return fmt::format(
        "linear part {}, attention {} times that: forward of one microbatch on one "
        "rank",
        times.forward[0], *options.attention_ratio);
  }
  return fmt::format("F {}, I {}, W {}: of one microbatch on one rank", times.forward[0],
                     times.backward_input[0], times.backward_weight[0]);
}

/// Copies are planned with the times of the costs, and those that an attention exchange leaves,
/// whether they were asked for or come with the schedule.
void add_offload(const ScheduleOptions& options, ResolvedSchedule& resolved) {
  const std::string& amount =
      options.offload.empty() ? find_schedule(options.name).offload : options.offload;
  const OffloadAmount parsed = parse_offload("--offload", amount, resolved.schedule.placement);
  set_offload_ratio(resolved.cost, options.offload_ratio);
  resolved.schedule = without_offload(std::move(resolved.schedule));
  if (parsed.num_chunks == 0) return;
  ExchangePlan exchange;
  if (resolved.exchange != ExchangeMode::kNone && resolved.cost.can_move_attention()) {
    exchange = plan_exchange(lower(resolved.schedule), resolved.exchange,
                             exchange_costs(resolved.cost), resolved.cost.link);
  }
  resolved.schedule =
      offload_schedule(resolved.schedule, resolved.cost, parsed, 0.0, {}, exchange).schedule;
}

}  // namespace

void add_schedule_options(CLI::App& app, ScheduleOptions& options, bool sizes_required) {
  std::vector<std::string_view> names = schedule_names();
  for (const std::string_view name : kUnbuiltSchedules) {
    if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
  }
  app.add_option("SCHEDULE", options.name, fmt::format("one of {}", fmt::join(names, ", ")))
      ->required()
      ->group("Schedule");
  CLI::Option* ranks =
      add_whole(app, "--ranks", options.ranks, 1, "number of pipeline ranks")->type_name("P");
  CLI::Option* microbatches =
      add_whole(app, "--microbatches", options.microbatches, 1, "microbatches of one training step")
          ->type_name("M");
  for (CLI::Option* size : {ranks, microbatches}) size->group("Schedule")->required(sizes_required);
  if (!sizes_required) {
    ranks->default_str(std::to_string(options.ranks));
    microbatches->default_str(std::to_string(options.microbatches));
  }
  add_whole(app, "--chunks", options.chunks, 1,
            "stages on each rank (default 2 for interleaved, breadth-first, gis, gis-h, po* and "
            "the V shapes, else 1)")
      ->type_name("V")
      ->group("Schedule");
  add_whole(
      app, "--slices", options.slices, 1,
      "parts that every sequence is cut into (default 1; P for seq1f1b, slimpipe and slice-v)")
      ->type_name("N")
      ->group("Schedule");
  add_whole(
      app, "--group", options.group, 1,
      "microbatches that visit a chunk together, for interleaved and gis (default P); slices, "
      "for slimpipe")
      ->type_name("G")
      ->group("Schedule");

  CLI::Option* times =
      app.add_option("--times", options.times,
                     "times of forward, backward for the input and backward for the weights of one "
                     "microbatch on one rank (all its chunks), in any unit")
          ->type_name("F,I,W")
          ->default_str("1,1,1")
          ->group("Times");
  app.add_option("--costs", options.costs_path,
                 "measured times instead, as JSON: {\"unit\": \"us\", \"forward\": .., "
                 "\"backward\": .. or \"backward_input\": .., \"backward_weight\": .., \"p2p\": "
                 "..}, each one number or an array over ranks")
      ->type_name("FILE")
      ->excludes(times)
      ->group("Times");
  app.add_option_function<std::string>(
         "--p2p",
         [&options](const std::string& text) { options.message = parse_number("--p2p", text); },
         "time of one message between ranks, in the unit of the times (default 0, or p2p of "
         "--costs)")
      ->type_name("T")
      ->group("Times");
  app.add_option_function<std::string>(
         "--attention-ratio",
         [&options](const std::string& text) {
           options.attention_ratio = parse_number("--attention-ratio", text);
         },
         "attention takes R times what the linear part, F of --times, takes in a whole forward, "
         "more in late slices than in early ones")
      ->excludes("--costs")
      ->type_name("R")
      ->group("Times");

  add_choice(
      app, "--exchange", options.exchange, {"none", "pairwise", "balanced"},
      "how ranks compute attention for each other, with slices: not, as published, or levelled "
      "over all busy ranks")
      ->default_str("none")
      ->group("Techniques");
  add_choice(
      app, "--vocab", options.vocab, {"last", "parallel-1", "parallel-2"},
      "where embedding and output layer are computed: on the first and last stage, or sharded "
      "over all ranks with two barriers or one")
      ->default_str("last")
      ->group("Techniques");
  app.add_option_function<std::string>(
         "--offload",
         [&options](const std::string& text) {
           if (text != "none" && text != "half" && text != "full" &&
               (text.empty() || text.find_first_not_of("0123456789") != std::string::npos)) {
             throw InvalidArgument(fmt::format(
                 "--offload {}: choose one of none, half, full, or a count of chunks", text));
           }
           options.offload = text;
         },
         "which saved activations leave device memory and come back: of the longer-lived half of "
         "the chunks, of all, or of the COUNT longest-lived; of these, those that the link can "
         "carry (default half for po-h, full for po-f, else none)")
      ->type_name("none|half|full|COUNT")
      ->group("Techniques");
  app.add_option_function<std::string>(
         "--offload-ratio",
         [&options](const std::string& text) {
           options.offload_ratio = parse_number("--offload-ratio", text);
         },
         "time to copy out and back what a forward saves against the time of the forward and its "
         "backward; copies one way at a time")
      ->type_name("K")
      ->default_str("1")
      ->group("Techniques");
}

ResolvedSchedule resolve(const ScheduleOptions& given) {
  check_built(given);
  ScheduleOptions options = given;
  if (options.slices == 0) {
    options.slices = find_schedule(options.name).slices_itself ? options.ranks : 1;
  }
  ResolvedSchedule resolved;
  CostFile costs;
  if (options.costs_path.empty()) {
    costs.times = parse_times(options.times);
  } else {
    costs = read_costs(options);
    if (costs.seconds_per_unit > 0.0) resolved.seconds_per_unit = costs.seconds_per_unit;
  }
  if (options.message) {
    costs.times.message = *options.message;
    costs.times.message_of_rank.clear();
  }

  ScheduleRequest request;
  request.ranks = options.ranks;
  request.microbatches = options.microbatches;
  request.chunks = options.chunks;
  request.slices = options.slices;
  request.group = options.group;
  resolved.schedule = make_schedule(options.name, request);
  const VocabForm vocab = vocab_form(options.vocab);
  if (!options.costs_path.empty() && vocab == VocabForm::kLast) {
    check_costs(options, costs, resolved.schedule);
  }
  const Placement placement = resolved.schedule.placement;
  resolved.cost = make_cost(options, costs, placement);
  resolved.cost.link = make_link(costs, resolved.cost, placement);
  resolved.exchange = exchange_mode(options.exchange);
  if (options.attention_ratio || costs.slices || !is_unit_cost(costs.times)) {
    // The placement had to be known first; now the generator can plan with the times.
    request.ticks = to_pass_ticks(resolved.cost);
    resolved.schedule = make_schedule(options.name, request);
  }
  if (vocab != VocabForm::kLast) {
    add_vocab_costs(costs, vocab, resolved.cost);
    const auto make = [&](int num_microbatches) {
      request.microbatches = num_microbatches;
      return make_schedule(options.name, request);
    };
    resolved.schedule = plan_vocabulary(make, options.microbatches, vocab, resolved.cost);
    if (!options.costs_path.empty()) check_costs(options, costs, resolved.schedule);
  }
  add_offload(options, resolved);
  resolved.axis = {resolved.cost.unit_per_tick, costs.unit};
  resolved.times = describe_times(options, costs);
  return resolved;
}

}  // namespace sluice::cli
