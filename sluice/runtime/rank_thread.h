// rank_thread.h - what every thread that runs a rank sets first, and running all ranks of a
// process.
#pragma once

#include <ATen/core/LegacyTypeDispatch.h>

#include <functional>
#include <memory>
#include <vector>

#include "sluice/comm/transport.h"

namespace sluice {

/// Thread-local torch state of a rank: one intra-op thread (a rank is a thread; results then do not
/// depend on how many there are) and no autograd layer. Alive for as long as the rank runs.
class RankThreadInit {
 public:
  RankThreadInit();

 private:
  at::AutoDispatchBelowADInplaceOrView below_autograd_;
};

/// Runs `body` for every transport on a thread of its own, with RankThreadInit set, and waits for
/// all. The first error stops the others (Transport::abort) and is rethrown here; errors that only
/// repeat the abort are dropped.
void run_ranks(const std::vector<std::unique_ptr<Transport>>& transports,
               const std::function<void(Transport&)>& body);

}  // namespace sluice
