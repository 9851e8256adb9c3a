// checkpoint_parts.h - one checkpoint written by all processes of a run into one folder, each the
// tensors it holds. Free of torch. Read next: saver.h.
//
// Instead of model.safetensors the folder then holds model-00001-of-00004.safetensors and so on, a
// part for every rank that has tensors, with model.safetensors.index.json; optimizer likewise. Both
// forms are those of Hugging Face, and open_checkpoint() reads them alike.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "sluice/comm/transport.h"
#include "sluice/train/checkpoint.h"

namespace sluice {

/// One checkpoint that all ranks write; the folder gets its name only when every part is on the
/// disk. It must be the same one for all, on a disk that they share.
/// Threads: write() may run on another thread than the rest; it uses no transport.
class CheckpointParts {
 public:
  /// Makes the temporary folder. All ranks construct together; state, config and `keep` are rank
  /// 0's, the tensors every rank's own. Throws: Failure; CommError on the other ranks.
  CheckpointParts(std::filesystem::path folder, CheckpointContents contents, std::int64_t keep,
                  Transport& world);

  /// Writes this rank's files. Once. Throws: Failure where something could not be written.
  void write();

  /// Joins the parts; returns the final folder. After write(); all ranks call it together.
  /// Throws: Failure where something could not be written; CommError on the other ranks.
  std::filesystem::path finish(Transport& world);

 private:
  const std::filesystem::path folder_;
  CheckpointContents contents_;  // tensors until write()
  const std::int64_t keep_;
  const int rank_;
  const int num_ranks_;
  std::optional<CheckpointWriter> writer_;  // on rank 0; removes the folder if it stays unfinished
  std::string written_;                     // what rank 0 is told of this rank's files
};

}  // namespace sluice
