// backoff.h - waiting for something that must be polled. Used by mpi.cc and nccl.cc.
#pragma once

#include <sched.h>
#include <unistd.h>

namespace sluice {

/// Spins, then yields, then sleeps: a message that is near is taken at once, a rank that waits long
/// takes no core from one that computes.
class Backoff {
 public:
  /// Returns true when it is time to look at the clock.
  bool pause() {
    ++polls_;
    if (polls_ > kSpins + kYields) {
      usleep(50);
      return true;
    }
    if (polls_ > kSpins) sched_yield();
    return polls_ % 256 == 0;
  }

 private:
  static constexpr int kSpins = 2000;
  static constexpr int kYields = 4000;
  int polls_ = 0;
};

}  // namespace sluice
