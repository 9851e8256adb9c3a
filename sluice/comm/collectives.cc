#include "sluice/comm/collectives.h"

#include <algorithm>

namespace sluice {
namespace {

MessageTag message_tag(const CollectiveTag& tag) {
  return {Direction::kCollective, tag.kind, tag.microbatch, tag.slice};
}

std::size_t index(int rank) { return static_cast<std::size_t>(rank); }

}  // namespace

void Collectives::send(int peer, const CollectiveTag& tag, const Buffer& buffer) {
  sends_.emplace_back(transport_.post_send(peer, message_tag(tag), buffer), buffer);
}

void Collectives::forget_sent() {
  std::erase_if(sends_, [&](const auto& sent) {
    if (!transport_.is_sent(sent.first)) return false;
    transport_.wait_send(sent.first);
    return true;
  });
}

Collectives::Operation Collectives::post_broadcast(int root, const CollectiveTag& tag,
                                                   Buffer buffer) {
  forget_sent();
  Operation operation;
  operation.posted_ = true;
  operation.receives_.assign(1, 0);
  operation.buffers_.resize(1);
  if (transport_.rank() != root) {
    operation.receives_[0] = transport_.post_receive(root, message_tag(tag), std::move(buffer));
    return operation;
  }
  for (int peer = 0; peer < transport_.size(); ++peer) {
    if (peer != root) send(peer, tag, buffer);
  }
  operation.buffers_[0] = std::move(buffer);
  return operation;
}

Collectives::Operation Collectives::post_gather(int root, const CollectiveTag& tag, Buffer mine,
                                                std::vector<Buffer> destinations) {
  forget_sent();
  const int self = transport_.rank();
  Operation operation;
  operation.posted_ = true;
  for (int peer = 0; peer < transport_.size(); ++peer) {
    if (peer != self && (root < 0 || root == peer)) send(peer, tag, mine);
  }
  if (root >= 0 && root != self) return operation;
  operation.receives_.assign(index(transport_.size()), 0);
  operation.buffers_.resize(index(transport_.size()));
  destinations.resize(index(transport_.size()));
  for (int peer = 0; peer < transport_.size(); ++peer) {
    if (peer == self) continue;
    operation.receives_[index(peer)] =
        transport_.post_receive(peer, message_tag(tag), std::move(destinations[index(peer)]));
  }
  operation.buffers_[index(self)] = std::move(mine);
  return operation;
}

std::vector<Buffer> Collectives::wait(Operation& operation) {
  Operation mine = std::exchange(operation, {});
  for (std::size_t rank = 0; rank < mine.receives_.size(); ++rank) {
    if (mine.receives_[rank] != 0) {
      mine.buffers_[rank] = transport_.wait_receive(mine.receives_[rank]);
    }
  }
  return std::move(mine.buffers_);
}

void Collectives::flush() {
  for (auto& [ticket, buffer] : sends_) transport_.wait_send(ticket);
  sends_.clear();
}

}  // namespace sluice
