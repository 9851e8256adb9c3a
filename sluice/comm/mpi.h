// mpi.h - ranks as processes of one MPI job. Read next: launch.h.
//
// Built when CMake finds MPI (SLUICE_WITH_MPI); otherwise no_mpi.cc throws InvalidArgument.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "sluice/comm/transport.h"

namespace sluice {

struct MpiOptions {
  std::chrono::milliseconds timeout{60000};  // of every wait
  /// Sends are synchronous (MPI_Issend): over only once the receive has begun. Tests turn it on to
  /// prove that nothing rests on buffering.
  bool rendezvous = false;
  /// Called on the helper thread when the job is lost and this rank has not noticed for half a
  /// second, because it computes or hangs. Gets the line to print; may end the process. Launchers
  /// kill what is left of a job within a second or two, so that waiting for the pass would be late.
  std::function<void(const std::string& report)> last_word;
};

/// This process's part in an MPI job, from MPI_Init_thread to MPI_Finalize. One rank per process.
/// Ownership: outlives the transports it made. Threads: one, except through the transports.
class MpiSession {
 public:
  /// Whether this build has MPI.
  static bool available();

  /// Whether the MPI library takes device memory of CUDA in messages, as it says itself when asked
  /// (MPIX_Query_cuda_support of Open MPI); false for one that cannot be asked.
  static bool moves_device_memory();

  /// Returns when all processes of the job are there. Throws: InvalidArgument when this build has
  /// no MPI, Failure when the MPI found cannot serve threads.
  MpiSession();

  /// Waits for the other ranks and finalizes MPI. After an abort or a passed time limit a rank may
  /// be gone: then it waits for two seconds at most.
  ~MpiSession();
  MpiSession(const MpiSession&) = delete;
  MpiSession& operator=(const MpiSession&) = delete;

  int rank() const;
  int size() const;

  /// A transport to all ranks of the job, with communicators of its own. All ranks must call it, in
  /// the same order. A helper thread moves messages while the rank computes, watches the peers on
  /// this machine and takes abort messages. Throws: CommError.
  ///
  /// Receives need a destination. A message is one MPI message per GiB on the communicator of its
  /// direction, so that source, destination and direction are a channel.
  std::unique_ptr<Transport> connect(const MpiOptions& options = {});

  struct State;

 private:
  std::shared_ptr<State> state_;
};

}  // namespace sluice
