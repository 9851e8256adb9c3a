// torchrun.h - what torchrun tells its processes about where they meet. Read next: nccl.h.
#pragma once

#include <cstdint>
#include <string>

#include "sluice/comm/launch.h"

namespace sluice {

/// This process's place in a job of torchrun, from the variables it sets (or somebody does in its
/// stead: RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT).
struct TorchrunPlace {
  int rank = 0;
  int size = 1;
  int local_rank = 0;         // among the processes of this machine: its GPU
  std::string host;           // of the store
  std::uint16_t port = 0;     // of the store
  bool serves_store = false;  // this process has to
  std::string prefix;         // of keys: of this run, and of this attempt where torchrun restarts
};

/// Reads the variables. Throws: InvalidArgument naming the one that is missing or no number.
TorchrunPlace torchrun_place(const GetVariable& get);
TorchrunPlace torchrun_place();

}  // namespace sluice
