// reference.h - the whole model, unsplit, under autograd: the oracle of tests and of `sluice
// verify`. The engine never includes this file.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <string>

#include "sluice/model/config.h"
#include "sluice/model/loss.h"

namespace sluice {

/// Parameter values by name; with tied embeddings lm_head.weight is absent.
using NamedTensors = std::map<std::string, at::Tensor>;

struct ReferenceResult {
  LossSum loss;
  NamedTensors gradients;  // of scale * (cross entropy + z_loss), by parameter name
};

/// One forward and backward of tokens_BT against targets_BT (int64) in the values' own type,
/// written with plain, differentiable tensor formulas that share no code with the layers: explicit
/// mask, expanded key-value heads, whole logits. REQUIRES: no dispatch guard that skips autograd is
/// active on this thread.
ReferenceResult reference_step(const ModelConfig& config, const NamedTensors& values,
                               const at::Tensor& tokens_BT, const at::Tensor& targets_BT,
                               const LossOptions& options);

}  // namespace sluice
