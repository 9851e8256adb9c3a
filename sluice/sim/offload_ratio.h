// offload_ratio.h - k before anything was measured: what copies of a layer take against its passes.
// Read next: offload_schedule.h.
#pragma once

namespace sluice {

/// A dense decoder layer as PipeOffload (arXiv 2503.01328) counts it: 16 bits, intermediate size
/// 4 h, as many key-value heads as heads, norms and activation functions computed again, attention
/// over whole sequences as if not causal.
struct OffloadedLayer {
  double hidden_size = 0.0;  // h
  double num_tokens = 0.0;   // s, of a sequence
  /// Bytes that a layer saves of one token: 20 h.
  double saved_bytes_per_token() const { return 20.0 * hidden_size; }
  /// Forward and backward of one token: three times 24 h^2 + 4 h s.
  double flops_per_token() const { return 12.0 * hidden_size * (6.0 * hidden_size + num_tokens); }
};

/// k: the time to copy what a layer saves out and back, one direction at a time, over the time of
/// its forward and backward; 10 / (3 (6 h + s)) * flops_per_second / bytes_per_second. Neither the
/// batch nor the number of layers, chunks or ranks changes it. `bytes_per_second` is of one
/// direction.
inline double offload_ratio(const OffloadedLayer& layer, double flops_per_second,
                            double bytes_per_second) {
  return 2.0 * layer.saved_bytes_per_token() / bytes_per_second /
         (layer.flops_per_token() / flops_per_second);
}

}  // namespace sluice
