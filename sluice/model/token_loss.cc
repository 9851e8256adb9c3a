#include "sluice/model/token_loss.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/log.h>
#include <ATen/ops/maximum.h>

#include "sluice/common/errors.h"

namespace sluice {
namespace {

double sum_in_order(const at::Tensor& values_N) {
  return values_N.to(at::kDouble).sum().item<double>();
}

}  // namespace

TokenLoss combine_statistics(const std::vector<at::Tensor>& statistics_KN,
                             const at::Tensor& weights_N, std::int64_t vocab_size,
                             const LossOptions& options) {
  SLUICE_CHECK(!statistics_KN.empty());
  if (options.label_smoothing > 0.0 && options.logit_softcap > 0.0) {
    throw InvalidArgument(fmt::format(
        "label smoothing {} with a logit soft-cap of {}: its part of the gradient would "
        "need another product; set one of them to 0",
        options.label_smoothing, options.logit_softcap));
  }
  at::Tensor maximum_N = statistics_KN.front().select(0, kMaximumRow);
  for (const at::Tensor& shard : statistics_KN) {
    maximum_N = at::maximum(maximum_N, shard.select(0, kMaximumRow));
  }
  at::Tensor sum_N = at::full_like(maximum_N, 0.0);
  at::Tensor label_N = at::full_like(maximum_N, 0.0);
  at::Tensor logits_N = at::full_like(maximum_N, 0.0);
  for (const at::Tensor& shard : statistics_KN) {
    sum_N.addcmul_(shard.select(0, kSumRow), at::exp(shard.select(0, kMaximumRow) - maximum_N));
    label_N.add_(shard.select(0, kLabelRow));
    if (options.label_smoothing > 0.0) logits_N.add_(shard.select(0, kLogitsRow));
  }
  const double smoothing = options.label_smoothing, z = options.z_loss;
  TokenLoss loss;
  loss.lse_N = maximum_N + at::log(sum_N);
  loss.target_factor_N = at::full_like(maximum_N, options.scale);
  if (weights_N.defined()) loss.target_factor_N.mul_(weights_N);
  loss.softmax_factor_N = loss.target_factor_N * (1.0 + 2.0 * z * loss.lse_N);
  loss.label_factor_N = loss.softmax_factor_N * at::exp(label_N - loss.lse_N) -
                        (1.0 - smoothing) * loss.target_factor_N;
  if (options.logit_softcap > 0.0) {
    loss.label_factor_N.mul_(1.0 - (label_N / options.logit_softcap).square());
  }
  for (const at::Tensor& shard : statistics_KN) {
    loss.shard_factor_N.push_back(loss.softmax_factor_N *
                                  at::exp(shard.select(0, kMaximumRow) - loss.lse_N));
  }
  at::Tensor cross_entropy = loss.lse_N - (1.0 - smoothing) * label_N;
  if (smoothing > 0.0) {
    cross_entropy -= logits_N * (smoothing / static_cast<double>(vocab_size));
  }
  at::Tensor squares = z * loss.lse_N.square();
  if (weights_N.defined()) {
    cross_entropy = cross_entropy * weights_N;
    squares = squares * weights_N;
  }
  loss.sum.cross_entropy = sum_in_order(cross_entropy);
  loss.sum.z_loss = sum_in_order(squares);
  loss.sum.num_targets = maximum_N.size(0);
  return loss;
}

}  // namespace sluice
