// rotary.h - cosines and sines of rotary position embedding by absolute position.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "sluice/model/config.h"
#include "sluice/model/kernels.h"

namespace sluice {

/// Grows with the largest position asked for. On a CPU its memory is not the tensor allocator's, as
/// it belongs to no pass. Threads: one at a time.
class RotaryTable {
 public:
  RotaryTable(const ModelConfig& config, at::Device device);

  /// Angles of positions 0 .. num_positions - 1 at least: position times
  /// rope_theta^(-2 i / head size), computed in fp64.
  const RotaryAngles& up_to(std::int64_t num_positions);

 private:
  std::int64_t half_head_;
  double theta_;
  at::ScalarType type_;
  at::Device device_;
  RotaryAngles angles_;
};

}  // namespace sluice
