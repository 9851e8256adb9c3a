#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "sluice/cli/commands.h"
#include "sluice/cli/files.h"
#include "sluice/cli/output.h"
#include "sluice/cli/processes.h"
#include "sluice/common/errors.h"
#include "sluice/model/accounting.h"
#include "sluice/trace/chrome.h"
#include "sluice/trace/compare.h"
#include "sluice/train/metrics.h"
#include "sluice/train/tensorboard.h"
#include "sluice/train/trainer.h"

namespace sluice::cli {
namespace {

struct Arguments {
  std::string config_path;
  std::vector<std::string> overrides;
  bool resume = false;
  std::int64_t steps = 0;  // 0: as in the config
};

// A signal handler can reach nothing but a global of this type; the second Ctrl-C ends the program
// at once, since the handler then is the system's own. Launchers repeat SIGTERM for every process
// that they lose; what is left still has something to say then.
std::atomic<bool> interrupted{false};
static_assert(std::atomic<bool>::is_always_lock_free);

void on_interrupt(int signal) {
  interrupted = true;
  if (signal == SIGINT) std::signal(signal, SIG_DFL);
}

/// Progress for people on standard error: one line that renews itself on a terminal, a line per
/// step elsewhere.
class Progress {
 public:
  void step(const std::string& line) {
    fmt::print(stderr, "{}{}{}", terminal_ ? "\r\x1b[K" : "", line, terminal_ ? "" : "\n");
    std::fflush(stderr);
    open_line_ = terminal_;
  }
  void note(const std::string& line) {
    fmt::print(stderr, "{}{}\n", open_line_ ? "\n" : "", line);
    std::fflush(stderr);
    open_line_ = false;
  }

 private:
  const bool terminal_ = isatty(STDERR_FILENO) != 0;
  bool open_line_ = false;
};

/// A fresh run never writes over another one.
void check_folder_is_free(const std::filesystem::path& folder, bool resume) {
  const std::filesystem::path checkpoints = folder / "checkpoints";
  if (resume || !std::filesystem::exists(checkpoints) || std::filesystem::is_empty(checkpoints)) {
    return;
  }
  throw InvalidArgument(
      fmt::format("{} holds the checkpoints of a run; continue it with --resume, or choose another "
                  "folder with --set run.dir=...",
                  folder.string()));
}

/// The compute lanes alone: what a prediction without message times can be held against.
Timeline passes_only(Timeline timeline) {
  for (auto& spans : timeline.ranks) {
    std::erase_if(spans, [](const Span& span) { return span.kind != ActionKind::kPass; });
  }
  return timeline;
}

/// Everything a run writes beside its checkpoints, while it goes on.
class RunLog {
 public:
  RunLog(const Trainer& trainer, const std::filesystem::path& folder)
      : trainer_(trainer),
        metrics_(folder / "metrics.jsonl", trainer.first_step()),
        flops_per_token_(training_flops_per_token(trainer.config().model,
                                                  trainer.config().data.sequence_length)) {
    if (trainer.config().run.tensorboard) tensorboard_.emplace(folder);
    tokens_ = trainer.first_step() * trainer.config().global_batch() *
              trainer.config().data.sequence_length;
  }

  void step(const StepReport& report) {
    tokens_ += report.num_tokens;
    StepMetrics metrics;
    metrics.step = report.step;
    metrics.loss = report.loss;
    metrics.grad_norm = report.gradient_norm;
    metrics.learning_rate = report.learning_rate;
    metrics.tokens = tokens_;
    metrics.tokens_per_second = static_cast<double>(report.num_tokens) / report.seconds;
    metrics.step_seconds = report.seconds;
    if (trainer_.peak_flops_per_second() > 0.0) {
      metrics.mfu = metrics.tokens_per_second * flops_per_token_ / trainer_.peak_flops_per_second();
    }
    metrics_.write(metrics);
    if (tensorboard_) {
      tensorboard_->add(report.step, "loss", metrics.loss);
      tensorboard_->add(report.step, "grad_norm", metrics.grad_norm);
      tensorboard_->add(report.step, "learning_rate", metrics.learning_rate);
      tensorboard_->add(report.step, "tokens_per_second", metrics.tokens_per_second);
    }
    // A running mean, so that the time left does not jump with every step.
    mean_seconds_ =
        mean_seconds_ == 0.0 ? report.seconds : 0.9 * mean_seconds_ + 0.1 * report.seconds;
    const std::int64_t steps = trainer_.config().train.steps;
    progress_.step(
        progress_line(metrics, steps, mean_seconds_ * static_cast<double>(steps - report.step)));
    if (interrupted && !told_) {
      told_ = true;
      progress_.note("interrupted: this step is finished and saved, then the run ends");
    }
  }

  void validation(std::int64_t step, double loss) {
    ValidationMetrics metrics;
    metrics.step = step;
    metrics.loss = loss;
    metrics.tokens = tokens_;
    metrics_.write(metrics);
    if (tensorboard_) tensorboard_->add(step, "validation_loss", loss);
    progress_.note(progress_line(metrics, trainer_.config().train.steps));
  }

  void note(const std::string& line) { progress_.note(line); }

 private:
  const Trainer& trainer_;
  MetricsWriter metrics_;
  std::optional<TensorBoardWriter> tensorboard_;
  const double flops_per_token_;
  std::int64_t tokens_ = 0;
  double mean_seconds_ = 0.0;
  bool told_ = false;
  Progress progress_;
};

/// ranks/rank-N.jsonl of the ranks of this process.
class RankLogs {
 public:
  RankLogs(Trainer& trainer, const std::filesystem::path& folder) : first_(trainer.first_rank()) {
    std::filesystem::create_directories(folder);
    for (std::size_t i = 0; i < trainer.ranks().size(); ++i) {
      const std::string name = fmt::format("rank-{}.jsonl", first_ + static_cast<int>(i));
      writers_.push_back(std::make_unique<MetricsWriter>(folder / name, trainer.first_step()));
    }
  }

  /// On the thread of the rank.
  void write(const RankMetrics& metrics) {
    writers_[static_cast<std::size_t>(metrics.rank - first_)]->write(metrics);
  }

 private:
  const int first_;
  std::vector<std::unique_ptr<MetricsWriter>> writers_;
};

/// memory.json: {"ranks": [{class: {"predicted": bytes, "measured": bytes}}]}.
/// Ranks that copy activations out have also "offloaded_host" or "offloaded_disk".
std::string memory_json(const Trainer& trainer, const TrainResult& result) {
  const std::vector<MemoryPeaks>& predicted = trainer.plan().prediction.memory;
  const std::vector<MemoryPeaks>& measured = result.memory;
  const std::vector<std::int64_t>& away = trainer.plan().prediction.peak_bytes_away;
  nlohmann::ordered_json json;
  json["ranks"] = nlohmann::ordered_json::array();
  for (std::size_t rank = 0; rank < predicted.size(); ++rank) {
    nlohmann::ordered_json entry;
    for (int i = 0; i < kNumMemoryClasses; ++i) {
      const auto index = static_cast<std::size_t>(i);
      entry[std::string(to_string(static_cast<MemoryClass>(i)))] = {
          {"predicted", predicted[rank].by_class[index]},
          {"measured", measured[rank].by_class[index]}};
    }
    entry["total"] = {{"predicted", predicted[rank].total}, {"measured", measured[rank].total}};
    if (away[rank] > 0) {
      entry["offloaded_" + trainer.config().pipeline.offload_tier] = {
          {"predicted", away[rank]}, {"measured", result.copies[rank].peak_bytes_away}};
    }
    json["ranks"].push_back(std::move(entry));
  }
  return json.dump(2) + "\n";
}

/// Predicted against measured: time with the costs of the measured step, and memory.
void report_result(const Trainer& trainer, const TrainResult& result,
                   const std::filesystem::path& folder) {
  if (!result.last) return;
  const RunPlan& plan = trainer.plan();
  const bool cpu = trainer.config().run.device == "cpu";
  if (cpu) {
    write_output(folder / "memory.json", memory_json(trainer, result));
    print("\nmemory, peak of all steps\n" +
          show_memory(compare_memory(plan.prediction.memory, result.memory)));
  }
  const Simulation again = simulate(result.program, measured_costs(result.measured, result.program),
                                    {.record_timeline = true});
  print(fmt::format("\ntime of step {}, predicted from its own passes\n", result.measured_step) +
        show_times(compare_times(again.timeline, passes_only(result.measured))));
  if (trainer.config().run.trace_step > 0) {
    const bool traced = result.measured_step == trainer.config().run.trace_step;
    if (traced) {
      write_output(folder / "trace.json",
                   chrome_trace(result.measured, {.memory = cpu ? &result.memory_curve : nullptr,
                                                  .movable_bytes = movable_bytes(plan.memory)}));
      print(fmt::format("\ntrace of step {}: {}\n", result.measured_step,
                        (folder / "trace.json").string()));
    }
  }
}

RunConfig load(const Arguments& arguments) {
  std::vector<std::string> overrides = arguments.overrides;
  if (arguments.steps > 0) overrides.push_back(fmt::format("train.steps={}", arguments.steps));
  RunConfig config = load_config(arguments.config_path, overrides);
  check_folder_is_free(config.run.dir, arguments.resume);
  return config;
}

/// All ranks in this process, or the one that a launcher started it for. Errors are those of all
/// processes.
std::unique_ptr<Trainer> make_trainer(Processes& processes, const Arguments& arguments) {
  const RunConfig config = processes.load_together([&] { return load(arguments); });
  auto world = processes.connect(config, arguments.resume);
  return world.empty() ? std::make_unique<Trainer>(config, arguments.resume)
                       : std::make_unique<Trainer>(config, arguments.resume, std::move(world),
                                                   processes.gpu());
}

void install_interrupts() {
  for (const int signal : {SIGINT, SIGTERM, SIGUSR1}) std::signal(signal, on_interrupt);
}

/// The process of rank 0 reports and writes; the others only train.
void train(Trainer& trainer) {
  install_interrupts();
  TrainEvents events;
  events.stop = [] { return interrupted.load(); };
  const std::filesystem::path folder = trainer.config().run.dir;
  std::optional<RankLogs> rank_logs;
  if (trainer.config().run.rank_logs) {
    rank_logs.emplace(trainer, folder / "ranks");
    events.rank_step = [&](const RankMetrics& metrics) { rank_logs->write(metrics); };
  }
  if (!trainer.leads()) {
    trainer.run(events);
    return;
  }
  std::filesystem::create_directories(folder);
  write_output(folder / "config.toml", to_toml(trainer.config()));

  print(to_toml(trainer.config()) + "\n" + describe(trainer.plan(), trainer.config()) + "\n");
  RunLog log(trainer, folder);
  log.note(trainer.data_summary());
  for (const std::string& note : trainer.notes()) log.note(note);

  events.step = [&](const StepReport& report) { log.step(report); };
  events.validation = [&](std::int64_t step, double loss) { log.validation(step, loss); };
  events.note = [&](const std::string& line) { log.note(line); };
  events.checkpoint = [&](std::int64_t, const std::filesystem::path& path) {
    log.note(fmt::format("saved {}", path.string()));
  };
  const TrainResult result = trainer.run(events);
  report_result(trainer, result, folder);
  if (result.stopped) {
    print(fmt::format("stopped after step {}; continue with --resume\n", result.last_step));
  }
}

void run(const Arguments& arguments) {
  Processes processes;
  std::unique_ptr<Trainer> trainer;
  try {
    trainer = make_trainer(processes, arguments);
  } catch (const CommError&) {
    processes.leave_if_job(std::current_exception());
    throw;
  }
  try {
    train(*trainer);
  } catch (...) {
    processes.leave_if_job(std::current_exception());
    throw;
  }
}

}  // namespace

void add_train(CLI::App& app) {
  CLI::App* command = app.add_subcommand(
      "train", "Train a model through a pipeline: prints the plan, then a line per step.");
  const auto arguments = std::make_shared<Arguments>();
  command->add_option("config", arguments->config_path, "settings of the run, in TOML")
      ->required()
      ->type_name("CONFIG.toml");
  command
      ->add_option("--set", arguments->overrides,
                   "override a setting, e.g. --set pipeline.schedule=zb-v; may be repeated")
      ->type_name("SECTION.KEY=VALUE")
      ->type_size(1)
      ->allow_extra_args(false)
      ->group("Run");
  command
      ->add_flag("--resume", arguments->resume,
                 "continue from the newest complete checkpoint in run.dir")
      ->group("Run");
  command->add_option("--steps", arguments->steps, "train to this step (same as train.steps)")
      ->type_name("N")
      ->check(CLI::PositiveNumber)
      ->group("Run");
  command->footer(
      "sluice train configs/tiny_python.toml --set 'data.paths=[\"/usr/lib/python3\"]' --steps 20");
  command->callback([arguments] { run(*arguments); });
}

}  // namespace sluice::cli
