// checkpoint_parts.h - one checkpoint written by all processes of a run into one folder, each the
// tensors it holds. Free of torch. Read next: trainer.h.
//
// Instead of model.safetensors the folder then holds model-00001-of-00004.safetensors and so on, a
// part for every rank that has tensors, with model.safetensors.index.json; optimizer likewise. Both
// forms are those of Hugging Face, and open_checkpoint() reads them alike.
#pragma once

#include <cstdint>
#include <filesystem>

#include "sluice/comm/transport.h"
#include "sluice/train/checkpoint.h"

namespace sluice {

/// Writes step-N from the tensors of all ranks; the folder gets its name only when every part is on
/// the disk. All ranks call it together; state, config and `keep` are rank 0's. The folder must be
/// the same one for all, on a disk that they share. Returns the final folder. Throws: Failure where
/// something could not be written; CommError on the other ranks.
std::filesystem::path write_checkpoint_together(const std::filesystem::path& folder,
                                                CheckpointContents contents, std::int64_t keep,
                                                Transport& world);

}  // namespace sluice
