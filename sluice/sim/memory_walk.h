// memory_walk.h - follows one rank's bytes by class through its passes. Rules: docs/memory.md.
#pragma once

#include <cstdint>
#include <vector>

#include "sluice/program/program.h"
#include "sluice/sim/memory_model.h"
#include "sluice/trace/memory.h"

namespace sluice {

/// Live bytes of one rank while its passes run in order. Times play no part: what is live follows
/// from the order of the rank's own compute lane alone.
/// Ownership: keeps references to the program and the model.
class MemoryWalk {
 public:
  /// REQUIRES: one entry in `model` per stage.
  MemoryWalk(const Program& program, const MemoryModel& model, int rank);

  /// The pass starts: what it received from another rank, its workspace and what a forward saves
  /// become live.
  void begin(const Pass& pass);
  /// The pass ends: workspace, consumed inputs and what nobody needs any more go, its output comes.
  void end(const Pass& pass);
  /// The pass's output is on its way, when it goes to another rank. Returns whether bytes changed.
  bool post(const Pass& pass);

  /// The collective is posted: what this rank gives to it is on its way. Returns whether bytes
  /// changed.
  bool post_collective(const Action& action);

  /// The activations that D `pass` has copied out are free, or U `pass` begins to bring them back.
  void offload(const Pass& pass);
  void reload(const Pass& pass);

  const BytesByClass& bytes() const { return bytes_; }
  const MemoryPeaks& peaks() const { return peaks_; }

 private:
  // What a pass of one stage and direction takes from, and leaves for, other stages.
  struct Flow {
    std::int64_t received = 0;    // input bytes that come from another rank
    std::int64_t taken = 0;       // input bytes that a pass of this rank left
    std::int64_t made = 0;        // output bytes
    bool made_for_other = false;  // another rank takes the output
  };

  std::int64_t& live(MemoryClass memory_class) {
    return bytes_[static_cast<std::size_t>(memory_class)];
  }
  const StageMemory& stage_of(const Pass& pass) const {
    return model_.stages[static_cast<std::size_t>(pass.stage)];
  }
  const VocabMemory* shard_of(const Pass& pass) const;
  void begin_shard(const Pass& pass, const VocabMemory& memory);
  void end_shard(const Pass& pass, const VocabMemory& memory);
  void begin_token_loss(const Pass& pass);
  void end_token_loss(const Pass& pass);
  /// Whether the pass is the backward that starts from what the vocabulary's shards give.
  bool starts_from_shards(const Pass& pass) const;
  /// Whether the pass is the backward that makes the gradients of all keys and values.
  bool makes_kv_gradients(const Pass& pass) const;
  const Flow& flow_of(const Pass& pass) const;
  std::int64_t workspace_of(const Pass& pass) const;
  std::int64_t kv_gradients_made(const Pass& pass) const;
  std::int64_t inside_backward(const Pass& pass) const;
  void end_slice(const Pass& pass);
  void note_inside(const Pass& pass);
  void note_peaks();
  void note_class(MemoryClass memory_class, std::int64_t more);
  void note_class_peaks();
  void note_total(const BytesByClass& bytes);

  const MemoryModel& model_;
  int rank_;
  int num_slices_;
  bool keeps_saved_;
  VocabForm form_;
  std::vector<Flow> forward_;   // per stage
  std::vector<Flow> backward_;  // per stage
  // Per microbatch and slice: passes that have yet to use the loss of its tokens, which is live
  // once the first of them has begun.
  std::vector<std::uint8_t> loss_users_;
  std::vector<bool> loss_is_live_;
  BytesByClass bytes_{};
  MemoryPeaks peaks_;
};

}  // namespace sluice
