// weights.h - how layers create their parameters. Read next: decoder_layer.h.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "sluice/model/config.h"
#include "sluice/model/parameter.h"

namespace sluice {

/// A matrix (or vector) as the passes use it: several parameters stacked by rows, so that one
/// product serves all of them. The Parameters are views of its row ranges.
struct Weight {
  at::Tensor value, gradient;
};

/// Creates the parameters of one stage in order.
struct WeightMaker {
  const ModelConfig& config;
  at::Device device;
  std::uint64_t seed;
  std::vector<Parameter>& parameters;  // appended to

  /// Stacks `specs` (equal widths) by rows, initialises each and zeroes the gradients.
  Weight make(std::vector<ParameterSpec> specs) const;
};

/// Specs of the model's parameters: a matrix [rows, columns] with decay, a norm weight [columns].
ParameterSpec matrix_spec(std::string name, std::int64_t rows, std::int64_t columns,
                          double init_std);
ParameterSpec norm_spec(std::string name, std::int64_t columns);

}  // namespace sluice
