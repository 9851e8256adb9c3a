// launch.h - which launcher started this process, from its environment. Read next: mpi.h,
// torchrun.h.
#pragma once

#include <functional>
#include <optional>
#include <string>

namespace sluice {

/// A launcher that started several processes of one job.
struct Launch {
  enum class Kind { kMpi, kTorchrun };
  Kind kind = Kind::kMpi;
  std::string name;  // "mpirun", "srun", "torchrun"
  int rank = 0;
  int size = 1;
};

/// Reads a variable of the environment; null when it is not set.
using GetVariable = std::function<const char*(const char* name)>;

/// The launcher of this process, or nothing where it was started by itself. A batch script of Slurm
/// has the variables of its job but starts processes itself: only steps of srun count.
std::optional<Launch> detect_launch(const GetVariable& get);
std::optional<Launch> detect_launch();

}  // namespace sluice
