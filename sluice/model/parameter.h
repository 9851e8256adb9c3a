// parameter.h - a named weight with its gradient. Read next: stage.h.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "sluice/model/config.h"

namespace sluice {

/// How a parameter starts.
enum class Init : std::uint8_t { kNormal, kOnes };

/// Name, shape and rules of one parameter; the name is the Hugging Face tensor name and the only
/// key used for initialisation and checkpoints.
struct ParameterSpec {
  std::string name{};
  std::vector<std::int64_t> shape{};
  Init init = Init::kNormal;
  double init_std = 0.02;
  bool decayed = true;  // weight decay applies (matrices only)
  /// Not empty: the value is that of the parameter named here (tied embeddings). It is initialised
  /// by that name, and its gradient has to be added to that parameter's before the optimizer.
  std::string tied_to{};
  /// A shard of a matrix of `full_rows` rows (0: the whole matrix) begins at `first_row`. `shape`
  /// is that of the shard; every element starts as it does in the whole matrix.
  std::int64_t first_row = 0;
  std::int64_t full_rows = 0;
};

/// A weight and its gradient accumulator, both contiguous, owned by the stage. Several may be row
/// ranges of one matrix (q, k and v; gate and up), each 64-byte aligned when its rows' bytes are a
/// multiple of 64. Write into the tensors; never assign another tensor to them, as the stage would
/// not see it (set_() is seen where a parameter has a matrix of its own, as embedding and output
/// matrix do).
struct Parameter {
  ParameterSpec spec;
  at::Tensor value;     // the model's dtype
  at::Tensor gradient;  // fp32 for bf16 models, else the model's dtype; zeroed by the optimizer
};

/// Fills `value` from (seed, spec.name) alone, with a counter-based generator of our own, so that
/// every layout, thread count and torch version starts from the same model.
void initialize(const ParameterSpec& spec, std::uint64_t seed, at::Tensor& value);

}  // namespace sluice
