#include "sluice/schedule/schedule.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "sluice/common/errors.h"

namespace sluice {

Placement::Placement(std::vector<int> rank_of_stage, int num_ranks)
    : num_ranks_(num_ranks),
      rank_of_stage_(std::move(rank_of_stage)),
      stages_of_rank_(static_cast<std::size_t>(std::max(num_ranks, 0))) {
  for (int stage = 0; stage < num_stages(); ++stage) {
    const int rank = rank_of(stage);
    if (rank < 0 || rank >= num_ranks) {
      throw InvalidArgument(fmt::format("stage {} is placed on rank {}, but there are {} ranks",
                                        stage, rank, num_ranks));
    }
    stages_of_rank_[static_cast<std::size_t>(rank)].push_back(stage);
  }
}

Placement Placement::loop(int ranks, int chunks) {
  std::vector<int> rank_of_stage;
  for (int chunk = 0; chunk < chunks; ++chunk) {
    for (int rank = 0; rank < ranks; ++rank) rank_of_stage.push_back(rank);
  }
  return Placement(std::move(rank_of_stage), ranks);
}

Placement Placement::v_shape(int ranks) {
  std::vector<int> rank_of_stage;
  for (int rank = 0; rank < ranks; ++rank) rank_of_stage.push_back(rank);
  for (int rank = ranks - 1; rank >= 0; --rank) rank_of_stage.push_back(rank);
  return Placement(std::move(rank_of_stage), ranks);
}

int Placement::chunk_of(int stage) const {
  const std::vector<int>& stages = stages_of(rank_of(stage));
  return static_cast<int>(std::lower_bound(stages.begin(), stages.end(), stage) - stages.begin());
}

std::string_view to_string(VocabForm form) {
  switch (form) {
    case VocabForm::kLast:
      return "last";
    case VocabForm::kParallel1:
      return "parallel-1";
    case VocabForm::kParallel2:
      return "parallel-2";
  }
  throw InternalError(fmt::format("no vocabulary form {}", static_cast<int>(form)));
}

std::int64_t Schedule::num_passes() const {
  std::int64_t count = 0;
  for (const std::vector<Pass>& passes : ranks) count += static_cast<std::int64_t>(passes.size());
  return count;
}

Schedule forward_only(const Schedule& schedule) {
  Schedule forwards{.name = schedule.name,
                    .placement = schedule.placement,
                    .num_microbatches = schedule.num_microbatches,
                    .num_slices = schedule.num_slices,
                    .forward_only = true,
                    .vocab = schedule.vocab,
                    .ranks = {}};
  // The embedding look-up and the output layer's logits are forwards too.
  const auto is_forward = [](const Pass& pass) {
    return pass.kind == PassKind::kForward || pass.kind == PassKind::kEmbedForward ||
           pass.kind == PassKind::kVocabForward;
  };
  for (const std::vector<Pass>& passes : schedule.ranks) {
    std::vector<Pass>& kept = forwards.ranks.emplace_back();
    std::copy_if(passes.begin(), passes.end(), std::back_inserter(kept), is_forward);
  }
  return forwards;
}

}  // namespace sluice
