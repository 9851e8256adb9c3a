#include "sluice/train/step_data.h"

#include <ATen/ops/empty.h>

#include <algorithm>

#include "sluice/train/tokens.h"

namespace sluice {

StepData::StepData(const RunConfig& config, c10::Device device)
    : microbatch_size_(config.pipeline.microbatch_size),
      sequence_length_(config.data.sequence_length),
      z_loss_(config.train.z_loss),
      label_smoothing_(config.train.label_smoothing),
      device_(device) {
  const TokenSplit split = open_tokens(config.data, config.model.vocab_size);
  summary_ = split.summary;
  digest_ = split.train.digest();
  const auto seed = static_cast<std::uint64_t>(config.run.seed);
  training_ =
      std::make_unique<BatchPlan>(split.train, sequence_length_, seed, BatchPlan::Order::kShuffled);
  if (split.validation.num_tokens() <= sequence_length_ || config.train.validation_batches == 0) {
    return;
  }
  validation_ = std::make_unique<BatchPlan>(split.validation, sequence_length_, seed,
                                            BatchPlan::Order::kInOrder);
  const std::int64_t batch = config.global_batch();
  num_validation_batches_ =
      std::min(config.train.validation_batches, (validation_->num_sequences() + batch - 1) / batch);
}

StepData::Batch StepData::read(const Request& request) const {
  const bool trains = request.part == Part::kTraining;
  const BatchPlan& plan = trains ? *training_ : *validation_;
  Batch result;
  StepBatch& batch = result.batch;
  batch.loss.ignore_index = kIgnoreTarget;
  batch.loss.z_loss = z_loss_;
  batch.loss.label_smoothing = trains ? label_smoothing_ : 0.0;
  batch.num_sequences = microbatch_size_;
  batch.num_tokens = sequence_length_;
  if (!request.tokens && !request.targets) return result;  // only the ends of the pipeline read

  const auto count = static_cast<std::size_t>(microbatch_size_ * sequence_length_);
  for (int microbatch = 0; microbatch < request.num_microbatches; ++microbatch) {
    at::Tensor tokens = at::empty({microbatch_size_, sequence_length_}, at::kLong);
    at::Tensor targets = at::empty({microbatch_size_, sequence_length_}, at::kLong);
    result.num_targets += plan.read(request.first_sample + microbatch * microbatch_size_,
                                    {tokens.data_ptr<std::int64_t>(), count},
                                    {targets.data_ptr<std::int64_t>(), count});
    if (request.tokens) batch.tokens_BT.push_back(tokens.to(device_));
    if (request.targets) batch.targets_BT.push_back(targets.to(device_));
  }
  batch.loss.scale = 1.0 / static_cast<double>(std::max<std::int64_t>(1, result.num_targets));
  return result;
}

}  // namespace sluice
