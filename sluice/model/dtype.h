// dtype.h - torch's names for the model's types. Read next: kernels.h.
#pragma once

#include <c10/core/ScalarType.h>

#include "sluice/model/config.h"

namespace sluice {

/// Type of weights and activations.
at::ScalarType value_type(DType dtype);

/// Type of statistics, logits and key/value gradients: fp64 for fp64 models, else fp32.
at::ScalarType statistics_type(DType dtype);

/// Type of gradient accumulators: fp32 for bf16 models, else the model's type.
at::ScalarType gradient_type(DType dtype);

/// Statistics type of a tensor of this type.
at::ScalarType statistics_of(at::ScalarType type);

}  // namespace sluice
