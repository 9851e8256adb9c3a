// collectives.h - broadcasts and gathers that run beside the messages of a pipeline, built from
// point-to-point messages on a direction of their own, so that every transport has them.
// Read next: transport.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "sluice/comm/transport.h"

namespace sluice {

/// Names a collective: what it is for (a number of the caller's), microbatch and slice.
struct CollectiveTag {
  std::int32_t kind = 0;
  std::int32_t microbatch = 0;
  std::int32_t slice = 0;
};

/// One rank's part in collectives. Posting never waits. All ranks post the same collectives in the
/// same order; they may be waited for in any order. Nothing is added up here: who waits gets every
/// contribution by rank, and combines them in that order, so results never depend on timing.
/// Ownership: keeps a reference to the transport. Threads: the transport's.
class Collectives {
 public:
  explicit Collectives(Transport& transport) : transport_(transport) {}

  /// A posted collective. Empty after wait().
  class Operation {
   public:
    bool is_posted() const { return posted_; }

   private:
    friend class Collectives;
    bool posted_ = false;
    std::vector<Transport::Ticket> receives_;  // by rank; 0: none
    std::vector<Buffer> buffers_;              // by rank: what is here already
  };

  /// `root` gives `buffer` to all. Elsewhere `buffer` is where a transport that copies puts it.
  Operation post_broadcast(int root, const CollectiveTag& tag, Buffer buffer);

  /// Every rank gives `mine` to `root`, or to all with root -1. `destinations`, by rank, are where
  /// a transport that copies puts what comes; not used where nothing comes.
  Operation post_gather(int root, const CollectiveTag& tag, Buffer mine,
                        std::vector<Buffer> destinations);

  /// Waits for all that comes to this rank: by rank for a gather (empty elsewhere than at the
  /// root), the one buffer for a broadcast. Inside one process several ranks get one owner: nobody
  /// may write to it.
  std::vector<Buffer> wait(Operation& operation);

  /// Waits until all that was sent is taken.
  void flush();

 private:
  void send(int peer, const CollectiveTag& tag, const Buffer& buffer);
  void forget_sent();

  Transport& transport_;
  std::vector<std::pair<Transport::Ticket, Buffer>> sends_;
};

}  // namespace sluice
