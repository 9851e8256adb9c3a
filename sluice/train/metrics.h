// metrics.h - metrics.jsonl and the progress line. Free of torch. Read next: tensorboard.h.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

namespace sluice {

/// What one step gave.
struct StepMetrics {
  std::int64_t step = 0;  // counted from 1
  double loss = 0.0;      // nats per target token, before the step's update
  double grad_norm = 0.0;
  double learning_rate = 0.0;
  std::int64_t tokens = 0;  // target tokens since the start of training
  double tokens_per_second = 0.0;
  double step_seconds = 0.0;
  std::optional<double> mfu;  // share of the peak FLOP rate; none when that is not known
};

/// What one validation gave.
struct ValidationMetrics {
  std::int64_t step = 0;  // steps done before it
  double loss = 0.0;      // nats per target token
  std::int64_t tokens = 0;
};

/// What one rank did in one step.
struct RankMetrics {
  std::int64_t step = 0;
  int rank = 0;                  // of the run
  double step_seconds = 0.0;     // by its own clock
  double compute_seconds = 0.0;  // in its passes; the rest is waiting, messages and the optimizer
  std::int64_t peak_bytes = 0;   // of its tensors, in this step
};

/// A line of metrics.jsonl, without its end. Numbers that JSON cannot hold become null.
std::string metrics_line(const StepMetrics& metrics);
/// Keys: step, validation_loss, validation_tokens.
std::string metrics_line(const ValidationMetrics& metrics);
/// A line of ranks/rank-N.jsonl. Keys: those of the struct.
std::string metrics_line(const RankMetrics& metrics);

/// Appends lines to metrics.jsonl or a rank's file, each in one write, so that a reader never sees
/// half of one.
class MetricsWriter {
 public:
  /// Opens the file; what a resumed run will write again (lines beyond `resumed_step`, and a last
  /// line without an end) is cut off first. A fresh run passes 0 and so begins with an empty file.
  /// Throws: Failure when the file cannot be written, or holds a line that is not of this format.
  MetricsWriter(std::filesystem::path path, std::int64_t resumed_step);
  ~MetricsWriter();
  MetricsWriter(const MetricsWriter&) = delete;
  MetricsWriter& operator=(const MetricsWriter&) = delete;

  /// Throws: Failure with the system's reason.
  void write(const StepMetrics& metrics);
  void write(const ValidationMetrics& metrics);
  void write(const RankMetrics& metrics);

 private:
  void write_line(std::string line);

  std::filesystem::path path_;
  int descriptor_ = -1;
};

/// One line for people: step, loss, norm, learning rate, tokens/s, MFU and the time left.
std::string progress_line(const StepMetrics& metrics, std::int64_t total_steps,
                          double seconds_left);
std::string progress_line(const ValidationMetrics& metrics, std::int64_t total_steps);

/// "850", "12.3k", "4.56M".
std::string short_count(double value);
/// "12s", "3m05s", "2h04m", "3d02h".
std::string short_duration(double seconds);

}  // namespace sluice
