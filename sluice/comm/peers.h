// peers.h - whether a process on this machine still lives. Read next: mpi.h.
#pragma once

#include <cstdint>
#include <vector>

namespace sluice {

/// What names a process for as long as its machine runs; travels as numbers.
struct ProcessName {
  std::uint64_t machine = 0;  // hash of the boot and of the name space of process ids
  std::int64_t pid = 0;
  std::int64_t start = 0;  // ticks since boot: a process id may be given again

  friend bool operator==(const ProcessName&, const ProcessName&) = default;
};

ProcessName this_process();

/// 52 bits of every number, so that doubles carry them.
std::vector<double> to_doubles(const ProcessName& name);
ProcessName process_name(const std::vector<double>& numbers);

/// False when the process ran on this machine and has ended (a zombie has). True where that cannot
/// be known: on another machine.
bool is_alive(const ProcessName& name, const ProcessName& self);

}  // namespace sluice
