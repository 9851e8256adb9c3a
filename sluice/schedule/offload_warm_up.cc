// Warm-up forwards as late as they may be, so that copies out have time before the next forward.
#include <algorithm>
#include <cstddef>
#include <tuple>

#include "sluice/schedule/offload.h"
#include "sluice/schedule/walk.h"

namespace sluice {
namespace {

struct Place {
  std::size_t rank = 0;
  std::size_t position = 0;
};

}  // namespace

PassTimetable delay_warm_up(const Schedule& schedule, PassTimetable times, std::int64_t message) {
  const UnitIndex index(schedule);
  std::vector<std::int64_t> forward_begin(index.size(), 0);
  std::vector<std::int64_t> backward_begin(index.size(), 0);
  std::vector<Place> warm_up;
  bool has_shards = false;
  for (std::size_t r = 0; r < schedule.ranks.size(); ++r) {
    bool steady = false;
    for (std::size_t i = 0; i < schedule.ranks[r].size(); ++i) {
      const Pass& pass = schedule.ranks[r][i];
      if (pass.kind == PassKind::kForward) {
        forward_begin[index(pass)] = times[r][i].begin;
        if (!steady) warm_up.push_back({r, i});
      } else if (is_backward(pass.kind)) {
        backward_begin[index(pass)] = times[r][i].begin;
        steady = true;
      }
      has_shards = has_shards || !is_stage_pass(pass.kind);
    }
  }
  // Whoever takes a forward's result begins after it: from the last begin to the first, every limit
  // is settled before it is used.
  std::stable_sort(warm_up.begin(), warm_up.end(), [&](const Place& a, const Place& b) {
    const PassInterval& x = times[a.rank][a.position];
    const PassInterval& y = times[b.rank][b.position];
    return std::tie(x.begin, x.end, a.position) > std::tie(y.begin, y.end, b.position);
  });
  for (const Place& place : warm_up) {
    const Pass& pass = schedule.ranks[place.rank][place.position];
    PassInterval& time = times[place.rank][place.position];
    const std::int64_t length = time.end - time.begin;
    std::int64_t limit = backward_begin[index(pass)];
    if (place.position + 1 < times[place.rank].size()) {
      limit = std::min(limit, times[place.rank][place.position + 1].begin);
    }
    if (pass.stage + 1 < index.num_stages) {
      const bool local = schedule.placement.rank_of(pass.stage + 1) == static_cast<int>(place.rank);
      limit = std::min(limit, forward_begin[index(pass.stage + 1, pass.microbatch, pass.slice)] -
                                  (local ? 0 : message));
    } else if (has_shards) {
      limit = std::min(limit, time.end);  // shards of the output layer wait for it
    }
    if (pass.slice + 1 < index.num_slices) {
      limit = std::min(limit, forward_begin[index(pass.stage, pass.microbatch, pass.slice + 1)]);
    }
    limit = std::max(limit, time.end);
    time = {limit - length, limit};
    forward_begin[index(pass)] = time.begin;
  }
  return times;
}

}  // namespace sluice
