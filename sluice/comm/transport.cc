#include "sluice/comm/transport.h"

#include <fmt/format.h>

#include <mutex>
#include <utility>

namespace sluice {

std::string to_string(const MessageTag& tag) {
  const std::string unit = fmt::format("microbatch {}, slice {}", tag.microbatch, tag.slice);
  const std::string place = fmt::format("stage {}, {}", tag.stage, unit);
  switch (tag.direction) {
    case Direction::kForward:
      return "activations of " + place;
    case Direction::kBackward:
      return "gradients of " + place;
    case Direction::kCollective:
      return fmt::format("part of collective {} of {}", tag.stage, unit);
    case Direction::kExchange:
      break;
  }
  return fmt::format("attention of {}, layer {}", place, tag.layer);
}

std::vector<Channel> every_channel(int num_ranks) {
  std::vector<Channel> channels;
  for (int source = 0; source < num_ranks; ++source) {
    for (int destination = 0; destination < num_ranks; ++destination) {
      for (int direction = 0; source != destination && direction < kNumDirections; ++direction) {
        channels.push_back({source, destination, static_cast<Direction>(direction)});
      }
    }
  }
  return channels;
}

struct Transport::LastDone {
  std::mutex mutex;
  std::string action;
};

Transport::Transport() : last_done_(std::make_shared<LastDone>()) {}
Transport::Transport(const Transport* parent) : last_done_(parent->last_done_) {}
Transport::~Transport() = default;

void Transport::open(const std::vector<Channel>& /*channels*/) {}

void Transport::note_done(std::string action) {
  const std::lock_guard lock(last_done_->mutex);
  last_done_->action = std::move(action);
}

std::string Transport::last_done() const {
  const std::lock_guard lock(last_done_->mutex);
  return last_done_->action.empty() ? "" : fmt::format(" (last done: {})", last_done_->action);
}

}  // namespace sluice
