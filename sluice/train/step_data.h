// step_data.h - the tokens of a run as the batches of its steps. Read next: trainer.h.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <memory>
#include <string>

#include "sluice/runtime/engine.h"
#include "sluice/train/batches.h"
#include "sluice/train/config.h"

namespace sluice {

/// Training and validation data of a run. Threads: any.
class StepData {
 public:
  enum class Part : std::uint8_t { kTraining, kValidation };

  /// Opens the files that the config names; batches go to `device`.
  /// Throws: InvalidArgument or Failure for data that cannot be used.
  StepData(const RunConfig& config, c10::Device device);

  const std::string& summary() const { return summary_; }  // one line
  const std::string& digest() const { return digest_; }    // of the training data
  /// Global batches of one validation; 0: there is no validation data.
  std::int64_t num_validation_batches() const { return num_validation_batches_; }

  /// Consecutive microbatches, and what of them a rank needs.
  struct Request {
    Part part = Part::kTraining;
    std::int64_t first_sample = 0;
    int num_microbatches = 0;
    bool tokens = true;
    bool targets = true;
  };
  struct Batch {
    StepBatch batch;               // its loss is the mean over the targets read
    std::int64_t num_targets = 0;  // 0 where neither tokens nor targets were asked for
  };
  /// Reads them, with the loss options of training or validation.
  /// Throws: Failure for a token outside the vocabulary.
  Batch read(const Request& request) const;

 private:
  std::int64_t microbatch_size_;
  std::int64_t sequence_length_;
  double z_loss_;
  double label_smoothing_;
  c10::Device device_;
  std::unique_ptr<BatchPlan> training_;
  std::unique_ptr<BatchPlan> validation_;  // null: no validation data
  std::int64_t num_validation_batches_ = 0;
  std::string summary_;
  std::string digest_;
};

}  // namespace sluice
