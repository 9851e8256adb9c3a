// tensors.h - at::Tensor into and out of checkpoint files. Read next: checkpoint.h.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "sluice/model/parameter.h"
#include "sluice/train/optimizer.h"
#include "sluice/train/safetensors.h"
#include "sluice/train/tensor_files.h"

namespace sluice {

/// A tensor as bytes under `name`. Shares the tensor's memory where it is contiguous on the CPU,
/// else owns a copy. The tensor must not change until the bytes are written.
NamedBytes named_bytes(const std::string& name, const at::Tensor& tensor);

/// Appends a parameter's value to `weights` and its state to `optimizer`, under the names of a
/// checkpoint. Parameters that are tied to another are left out: their owner is written.
void add_to_checkpoint(const Parameter& parameter, const AdamState& state,
                       std::vector<NamedBytes>& weights, std::vector<NamedBytes>& optimizer);

/// Copies a stored tensor into `destination`, converting the element type; of a stored matrix of
/// `full_rows` rows (0: it is as large as `destination`) those from `first_row` on.
/// Throws: Failure when the shapes differ.
void copy_into(const TensorView& stored, at::Tensor& destination, std::int64_t first_row = 0,
               std::int64_t full_rows = 0);

/// Fills a parameter's value from `weights` by its name, or by the name it is tied to.
void load_parameter(const TensorFiles& weights, Parameter& parameter);

/// Fills a parameter's state from an optimizer file. REQUIRES: not a tied parameter.
void load_state(const TensorFiles& optimizer, const Parameter& parameter, AdamState& state);

}  // namespace sluice
