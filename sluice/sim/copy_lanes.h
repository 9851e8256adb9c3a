// copy_lanes.h - when the offload copies of a rank start and end. Used by simulate().
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>

namespace sluice {

/// The copy lanes of one rank. Copies out run in the order of their posts, each as early as the
/// lane is free and its forward has ended; copies back in the order of their calls. When both share
/// one link, a copy back that is ready goes before a copy out that has not started. Copies out are
/// therefore timed only when somebody asks: a copy back posted later may still go first.
class CopyLanes {
 public:
  explicit CopyLanes(bool one_direction) : one_direction_(one_direction) {}

  void post_out(std::size_t action, std::int64_t ready, std::int64_t duration) {
    waiting_.push_back({action, ready, duration});
  }

  /// Times all copies out up to `action`, telling `ended` the end of each.
  /// REQUIRES: no copy back that is posted later can be ready before `action` starts.
  template <typename Ended>
  void settle(std::size_t action, const Ended& ended) {
    while (!waiting_.empty()) {
      const std::size_t first = waiting_.front().action;
      start_first(ended);
      if (first == action) return;
    }
  }

  /// A copy back that may start at `ready`. Returns its end.
  template <typename Ended>
  std::int64_t copy_in(std::int64_t ready, std::int64_t duration, const Ended& ended) {
    if (one_direction_) {
      while (!waiting_.empty() && begin_of_first() < ready) start_first(ended);
      return out_free_ = (out_free_ > ready ? out_free_ : ready) + duration;
    }
    return in_free_ = (in_free_ > ready ? in_free_ : ready) + duration;
  }

 private:
  struct Waiting {
    std::size_t action;
    std::int64_t ready;
    std::int64_t duration;
  };

  std::int64_t begin_of_first() const {
    return out_free_ > waiting_.front().ready ? out_free_ : waiting_.front().ready;
  }
  template <typename Ended>
  void start_first(const Ended& ended) {
    out_free_ = begin_of_first() + waiting_.front().duration;
    ended(waiting_.front().action, out_free_);
    waiting_.pop_front();
  }

  bool one_direction_;
  std::int64_t out_free_ = 0;  // of the shared link when there is one
  std::int64_t in_free_ = 0;
  std::deque<Waiting> waiting_;
};

}  // namespace sluice
