// loss.h - what the loss of a stage needs and gives. Free of torch. Read next: output_layer.h.
#pragma once

#include <cstdint>

namespace sluice {

struct LossOptions {
  double scale =
      1.0;  // d(total loss)/d(cross entropy of one token): 1 / valid targets of the batch
  std::int64_t ignore_index = -100;
  double z_loss = 0.0;  // adds z_loss * logsumexp^2 per token
  // Of sharded output layers alone (vocab_shard.h).
  double label_smoothing = 0.0;  // this share of the target is spread over the whole vocabulary
  double logit_softcap = 0.0;    // logits become softcap * tanh(logit / softcap); 0: as they are
};

/// Sums over the valid targets of one (microbatch, slice), in fp64, before `scale`. z_loss includes
/// its coefficient: the total loss is scale * (cross_entropy + z_loss).
struct LossSum {
  double cross_entropy = 0.0;
  double z_loss = 0.0;
  std::int64_t num_targets = 0;
};

}  // namespace sluice
