// torchrun_job.h - this process's part in a job that torchrun started. Used by processes.cc.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "sluice/comm/nccl.h"
#include "sluice/comm/torchrun.h"
#include "sluice/train/config.h"

namespace sluice::cli {

/// The store of the job, and what is made with it. Threads: one, except through the transports.
class TorchrunJob {
 public:
  /// Connects to the store, which rank 0 serves where the launcher does not. From here SIGTERM,
  /// with which torchrun answers the end of any other process, does not end this one: it has a line
  /// to print. Throws: InvalidArgument (variables), CommError.
  TorchrunJob();

  /// Where this process serves the store it waits, for some seconds, until the others need it no
  /// more.
  ~TorchrunJob();
  TorchrunJob(const TorchrunJob&) = delete;
  TorchrunJob& operator=(const TorchrunJob&) = delete;

  int rank() const { return place_.rank; }

  /// Collectives without messages, to agree on what runs.
  std::unique_ptr<Transport> connect_start();

  /// Loads NCCL and finds this process's GPU, a GPU for each; `start` tells the errors of one to
  /// all. Throws: InvalidArgument on all ranks alike.
  void find_device(Transport& start, const RunConfig& config);
  int gpu() const { return device_.index; }

  std::unique_ptr<Transport> connect(const RunConfig& config,
                                     std::function<void(const std::string&)> last_word);

 private:
  NcclDevice load_device(const RunConfig& config) const;
  NcclOptions options(const std::string& part) const;

  const TorchrunPlace place_;
  std::unique_ptr<Store> store_;
  NcclDevice device_;
};

}  // namespace sluice::cli
