// Message cost of the MPI transport beside the MPI library's own ping-pong, 1 KiB to 64 MiB. Run
// with two processes: mpirun -n 2 build/bench/bench_mpi
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <vector>

#include "sluice/comm/mpi.h"
#include "sluice/comm/mpi_calls.h"

namespace sluice {
namespace {

using Clock = std::chrono::steady_clock;

struct Bytes {
  explicit Bytes(std::size_t count) : owner(std::make_shared<std::vector<std::byte>>(count)) {}
  Buffer buffer() const { return {owner, owner->data(), owner->size()}; }
  std::shared_ptr<std::vector<std::byte>> owner;
};

/// There and back `rounds` times between ranks 0 and 1; seconds of one way.
template <typename Send, typename Receive>
double one_way(int rank, int rounds, Send send, Receive receive) {
  const auto begin = Clock::now();
  for (int i = 0; i < rounds; ++i) {
    if (rank == 0) send();
    receive();
    if (rank == 1) send();
  }
  return std::chrono::duration<double>(Clock::now() - begin).count() / (2.0 * rounds);
}

double library(int rank, int rounds, Bytes& out, Bytes& in) {
  const auto count = static_cast<int>(out.owner->size());
  return one_way(
      rank, rounds,
      [&] { MPI_Send(out.owner->data(), count, MPI_BYTE, 1 - rank, 0, MPI_COMM_WORLD); },
      [&] {
        MPI_Recv(in.owner->data(), count, MPI_BYTE, 1 - rank, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
      });
}

double transport_way(Transport& transport, int rounds, Bytes& out, Bytes& in) {
  const MessageTag tag;
  return one_way(
      transport.rank(), rounds,
      [&] { transport.wait_send(transport.post_send(1 - transport.rank(), tag, out.buffer())); },
      [&] {
        transport.wait_receive(transport.post_receive(1 - transport.rank(), tag, in.buffer()));
      });
}

/// Both in turn, several times, so that what else the machine does hits both; the best of each.
void compare(Transport& transport) {
  if (transport.rank() == 0) {
    fmt::print("{:>10} {:>14} {:>14} {:>8}\n", "bytes", "library us", "transport us", "ratio");
  }
  for (std::size_t bytes = 1024; bytes <= std::size_t{64} << 20; bytes *= 4) {
    const int rounds = static_cast<int>(std::clamp<std::size_t>((32u << 20) / bytes, 4, 4000));
    Bytes out(bytes), in(bytes);
    double theirs = 1e9, ours = 1e9;
    for (int i = 0; i < 7; ++i) {
      transport.barrier();
      theirs = std::min(theirs, library(transport.rank(), rounds, out, in));
      transport.barrier();
      ours = std::min(ours, transport_way(transport, rounds, out, in));
    }
    if (transport.rank() == 0) {
      fmt::print("{:>10} {:>14.2f} {:>14.2f} {:>8.3f}\n", bytes, 1e6 * theirs, 1e6 * ours,
                 ours / theirs);
    }
  }
}

}  // namespace
}  // namespace sluice

int main() {
  sluice::MpiSession session;
  const auto transport = session.connect();
  if (session.size() != 2) {
    fmt::print(stderr, "bench_mpi needs two processes: mpirun -n 2 bench_mpi\n");
    return 2;
  }
  sluice::compare(*transport);
}
