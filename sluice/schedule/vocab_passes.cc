#include "sluice/schedule/vocab_passes.h"

#include <cstddef>

#include "sluice/common/errors.h"

namespace sluice {
namespace {

bool stays(PassKind kind) { return kind == PassKind::kForward || kind == PassKind::kOffload; }

}  // namespace

Schedule delay_backwards(const Schedule& longer, int num_units, int num_microbatches) {
  const int num_slices = longer.num_slices;
  SLUICE_CHECK((longer.num_microbatches - num_microbatches) * num_slices >= num_units,
               "{} microbatches are too few to delay {} of {} slices by {}",
               longer.num_microbatches, num_microbatches, num_slices, num_units);
  Schedule result = longer;
  result.num_microbatches = num_microbatches;
  for (std::size_t rank = 0; rank < longer.ranks.size(); ++rank) {
    std::vector<Pass>& passes = result.ranks[rank];
    passes.clear();
    for (Pass pass : longer.ranks[rank]) {
      if (!stays(pass.kind)) {
        // Backwards come microbatch ascending, slice descending.
        const int turn = pass.microbatch * num_slices + (num_slices - 1 - pass.slice) - num_units;
        if (turn < 0) continue;
        pass.microbatch = turn / num_slices;
        pass.slice = num_slices - 1 - turn % num_slices;
      }
      if (pass.microbatch < num_microbatches) passes.push_back(pass);
    }
  }
  return result;
}

Schedule insert_vocab_passes(const Schedule& base, VocabForm form,
                             const std::vector<std::vector<std::int64_t>>& start,
                             const std::vector<TimedVocabPass>& vocabulary) {
  Schedule result = base;
  result.vocab = form;
  for (std::size_t rank = 0; rank < base.ranks.size(); ++rank) {
    std::vector<Pass>& passes = result.ranks[rank];
    passes.clear();
    passes.reserve(base.ranks[rank].size() + vocabulary.size());
    std::size_t next = 0;
    const auto take = [&] {
      const TimedVocabPass& pass = vocabulary[next++];
      passes.push_back({.kind = pass.kind,
                        .stage = static_cast<std::int32_t>(rank),
                        .microbatch = pass.microbatch,
                        .slice = pass.slice});
    };
    for (std::size_t i = 0; i < base.ranks[rank].size(); ++i) {
      while (next < vocabulary.size() && vocabulary[next].time <= start[rank][i]) take();
      passes.push_back(base.ranks[rank][i]);
    }
    while (next < vocabulary.size()) take();
  }
  return result;
}

}  // namespace sluice
