#include "sluice/comm/transport.h"

#include <fmt/format.h>

#include <mutex>
#include <utility>

namespace sluice {

std::string to_string(const MessageTag& tag) {
  if (tag.direction == Direction::kCollective) {
    return fmt::format("part of collective {} of microbatch {}, slice {}", tag.stage,
                       tag.microbatch, tag.slice);
  }
  return fmt::format("{} of stage {}, microbatch {}, slice {}",
                     tag.direction == Direction::kForward ? "activations" : "gradients", tag.stage,
                     tag.microbatch, tag.slice);
}

struct Transport::LastDone {
  std::mutex mutex;
  std::string action;
};

Transport::Transport() : last_done_(std::make_shared<LastDone>()) {}
Transport::Transport(const Transport* parent) : last_done_(parent->last_done_) {}
Transport::~Transport() = default;

void Transport::note_done(std::string action) {
  const std::lock_guard lock(last_done_->mutex);
  last_done_->action = std::move(action);
}

std::string Transport::last_done() const {
  const std::lock_guard lock(last_done_->mutex);
  return last_done_->action.empty() ? "" : fmt::format(" (last done: {})", last_done_->action);
}

}  // namespace sluice
