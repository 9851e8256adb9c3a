#include "sluice/train/verify_run.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/abs.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>

#include <algorithm>
#include <cmath>

#include "sluice/comm/local.h"
#include "sluice/runtime/allocator.h"
#include "sluice/train/batches.h"
#include "sluice/train/hf_config.h"
#include "sluice/train/pipeline_step.h"
#include "sluice/train/trainer.h"

namespace sluice {
namespace {

double bound_of(DType dtype) {
  return dtype == DType::kFloat64 ? 1e-12 : dtype == DType::kFloat32 ? 1e-5 : 5e-2;
}

bool same_bits(const StepOutcome& a, const StepOutcome& b) {
  if (a.losses.size() != b.losses.size() || a.gradients.size() != b.gradients.size()) return false;
  for (std::size_t i = 0; i < a.losses.size(); ++i) {
    if (a.losses[i].cross_entropy != b.losses[i].cross_entropy) return false;
  }
  return std::all_of(a.gradients.begin(), a.gradients.end(), [&](const auto& entry) {
    const auto other = b.gradients.find(entry.first);
    return other != b.gradients.end() && at::equal(entry.second, other->second);
  });
}

StepOutcome run_step(Trainer& trainer) {
  const auto transports = make_local_transports(trainer.config().pipeline.ranks, {});
  return run_pipeline_step(trainer.plan().program, trainer.ranks(), transports,
                           trainer.first_batch(), trainer.plan().keep_probabilities);
}

double mean_loss(const StepOutcome& outcome) {
  double sum = 0.0;
  std::int64_t count = 0;
  for (const LossSum& loss : outcome.losses) {
    sum += loss.cross_entropy;
    count += loss.num_targets;
  }
  return sum / static_cast<double>(std::max<std::int64_t>(1, count));
}

}  // namespace

Verification verify_run(const RunConfig& asked) {
  RunConfig config = asked;
  config.parallel.data = 1;  // one pipeline runs the whole batch
  Trainer trainer(config, /*resume=*/false);
  const StepOutcome outcome = run_step(trainer);

  RunConfig plain_config = config;
  plain_config.pipeline.schedule = "1f1b";
  // Shards of the vocabulary group their sums by rank, so that bits are those of as many ranks.
  const VocabForm vocab = trainer.plan().schedule.vocab;
  plain_config.pipeline.vocab = std::string(to_string(vocab));
  if (vocab == VocabForm::kLast) plain_config.pipeline.ranks = 1;
  plain_config.pipeline.chunks = 0;
  plain_config.pipeline.group = 0;
  plain_config.pipeline.exchange = "none";
  plain_config.pipeline.layers = "auto";
  plain_config.pipeline.offload = "none";
  Trainer plain(plain_config, /*resume=*/false);
  const StepOutcome plain_outcome = run_step(plain);

  NamedTensors weights;
  for (auto& [name, value] : copy_weights(plain.ranks())) {
    weights[name] = value.to(at::kCPU, at::kDouble);
  }
  ModelConfig exact = config.model;
  exact.dtype = DType::kFloat64;
  const StepBatch batch = plain.first_batch();
  const ReferenceResult reference = reference_step(exact, weights, at::cat(batch.tokens_BT).cpu(),
                                                   at::cat(batch.targets_BT).cpu(), batch.loss);

  Verification result;
  result.num_slices = config.pipeline.slices;
  result.plain_ranks = plain_config.pipeline.ranks;
  result.loss_pipeline = mean_loss(outcome);
  result.loss_reference = reference.loss.cross_entropy / static_cast<double>(std::max<std::int64_t>(
                                                             1, reference.loss.num_targets));
  for (const WeightShape& weight : weight_shapes(config.model)) {
    const at::Tensor& wanted = reference.gradients.at(weight.name);
    const at::Tensor got = outcome.gradients.at(weight.name).to(at::kCPU, at::kDouble);
    GradientAgreement one{.name = weight.name, .largest = wanted.abs().max().item<double>()};
    one.relative_error = (got - wanted).abs().max().item<double>() / std::max(one.largest, 1e-300);
    // A NaN must never compare as small.
    if (!(one.relative_error <= result.max_relative_gradient_error)) {
      result.max_relative_gradient_error = one.relative_error;
      result.worst_parameter = one.name;
    }
    result.parameters.push_back(one);
  }
  result.bit_identical = same_bits(outcome, plain_outcome);
  result.bound = bound_of(config.model.dtype);
  const double loss_error = std::abs(result.loss_pipeline - result.loss_reference);
  result.pass = result.bit_identical && result.max_relative_gradient_error <= result.bound &&
                loss_error <= result.bound * std::abs(result.loss_reference);
  return result;
}

}  // namespace sluice
