// saver.h - the checkpoints that a run writes, while it waits for them or in the background.
// Read next: checkpoint_parts.h, trainer.h.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <vector>

#include "sluice/train/checkpoint.h"
#include "sluice/train/checkpoint_parts.h"
#include "sluice/train/rank_model.h"

namespace sluice {

/// Where and how a run saves.
struct SaverOptions {
  std::filesystem::path folder;  // of all checkpoints
  std::int64_t keep = 0;         // newest kept; 0: all
  /// Training goes on while files are written. What is saved is copied first: until the checkpoint
  /// is whole that takes the bytes of weights and optimizer state once more.
  bool background = false;
};

/// A checkpoint that is whole.
struct SavedCheckpoint {
  std::int64_t step = 0;
  std::filesystem::path path;  // on rank 0
};

/// Writes one checkpoint after the other, for the ranks of this process. Where all ranks are here
/// rank 0 writes model.safetensors and optimizer.safetensors, else every rank its own part.
/// Threads: every rank of the run calls on its own thread, with `own` its place among the ranks
/// here, and all ranks call begin() and finish() together. One checkpoint is under way at a time.
class Saver {
 public:
  /// `num_ranks` of the run's ranks are in this process. REQUIRES: num_ranks >= 1.
  Saver(SaverOptions options, std::size_t num_ranks);
  ~Saver();

  /// Begins a checkpoint of all ranks' models; `contents` comes without tensors. When it returns
  /// the models may change. In the foreground all is written by then. REQUIRES: none is under way.
  /// Throws: Failure when it cannot be written; those before it stay usable.
  void begin(std::size_t own, RankModel& rank, const RankLinks& links, CheckpointContents contents);

  /// A checkpoint was begun and not finished. The same on all ranks.
  bool under_way(std::size_t own) const;

  /// Whether this rank's own writing goes on: finish() would wait for it.
  bool writing(std::size_t own) const;

  /// Waits for all ranks' writing and gives the folder its name.
  /// REQUIRES: under_way(). Throws: Failure of the writing.
  SavedCheckpoint finish(std::size_t own, const RankLinks& links);

 private:
  struct Part;  // of one rank

  void collect(Part& part, RankModel& rank, const RankLinks& links) const;
  Part& part(std::size_t own) const { return *parts_[own]; }

  const SaverOptions options_;
  std::vector<std::unique_ptr<Part>> parts_;  // by rank here; each used by its rank's thread alone,
                                              // by rank 0's too between two barriers
};

}  // namespace sluice
