// local.h - ranks as threads of one process: messages are handed over, never copied.
// Read next: runtime/engine.h.
#pragma once

#include <chrono>
#include <memory>
#include <vector>

#include "sluice/comm/transport.h"

namespace sluice {

struct LocalOptions {
  std::chrono::milliseconds timeout{60000};  // of every wait
  /// A send is over only once its receive was posted, as with messages too large to be buffered.
  /// The hand-over never needs it; tests turn it on to prove that nothing rests on buffering.
  bool rendezvous = false;
};

/// One Transport per rank, connected to each other inside this process. wait_receive() returns the
/// sender's Buffer with its owner. The shared state lives until the last Transport is gone.
/// REQUIRES: num_ranks >= 1.
std::vector<std::unique_ptr<Transport>> make_local_transports(int num_ranks,
                                                              const LocalOptions& options = {});

}  // namespace sluice
