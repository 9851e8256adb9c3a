// processes.h - the processes of a training run: whether this one belongs to a job, what it prints
// and how it leaves.
#pragma once

#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "sluice/comm/transport.h"
#include "sluice/train/config.h"

namespace sluice::cli {

/// This process's place in a job, or a process by itself.
class Processes {
 public:
  /// Joins the job of mpirun, srun or torchrun, if one started this process. Throws:
  /// InvalidArgument when this build has no MPI or torchrun's variables are wrong, CommError when
  /// the others cannot be reached.
  Processes();
  ~Processes();
  Processes(const Processes&) = delete;
  Processes& operator=(const Processes&) = delete;

  bool is_job() const;

  /// Runs `load` on every process; an error of one is thrown by all.
  RunConfig load_together(const std::function<RunConfig()>& load);

  /// Transports of the ranks that this process runs, checked against the settings: empty for a
  /// process by itself. Throws: InvalidArgument, on all processes alike.
  std::vector<std::unique_ptr<Transport>> connect(const RunConfig& config, bool resume);

  /// The GPU of this process, as it counts.
  int gpu() const;

  /// After an error that the others may not have: prints it, tells them and ends the process
  /// without waiting for anybody. For a process by itself returns.
  void leave_if_job(const std::exception_ptr& error);

 private:
  void check_transport(const RunConfig& config) const;

  struct Job;
  std::unique_ptr<Job> job_;
};

}  // namespace sluice::cli
