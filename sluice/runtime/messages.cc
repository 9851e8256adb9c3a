#include "sluice/runtime/messages.h"

#include <algorithm>
#include <utility>

#include "sluice/common/errors.h"
#include "sluice/runtime/allocator.h"
#include "sluice/runtime/tensor_buffer.h"

namespace sluice {
namespace {

constexpr std::size_t kAhead = 1;  // receives announced before they are needed

}  // namespace

MessageTag tag_of(const Pass& producer) {
  return {is_backward(producer.kind) ? Direction::kBackward : Direction::kForward, producer.stage,
          producer.microbatch, producer.slice};
}

Messages::Messages(const RankProgram& program, Transport& transport)
    : program_(program),
      transport_(transport),
      channel_of_(program.actions.size()),
      place_in_channel_(program.actions.size()) {
  for (std::size_t k = 0; k < program.actions.size(); ++k) {
    const Action& action = program.actions[k];
    if (action.kind != ActionKind::kReceive) continue;
    const Direction direction = tag_of(action.pass).direction;
    auto channel = std::find_if(channels_.begin(), channels_.end(), [&](const Channel& one) {
      return one.peer == action.peer && one.direction == direction;
    });
    if (channel == channels_.end()) {
      channels_.push_back({.peer = action.peer, .direction = direction});
      channel = channels_.end() - 1;
    }
    channel_of_[k] = static_cast<std::size_t>(channel - channels_.begin());
    place_in_channel_[k] = channel->actions.size();
    channel->actions.push_back(k);
  }
}

void Messages::begin(Room room) {
  room_ = std::move(room);
  tickets_.assign(program_.actions.size(), 0);
  for (Channel& channel : channels_) channel.num_posted = 0;
}

void Messages::post_next(Channel& channel) {
  const std::size_t action = channel.actions[channel.num_posted++];
  Buffer destination;
  if (transport_.copies()) {
    const LedgerScope uncounted(nullptr, MemoryClass::kBoundary);
    destination = buffer_of(room_());
  }
  tickets_[action] = transport_.post_receive(channel.peer, tag_of(program_.actions[action].pass),
                                             std::move(destination));
}

void Messages::post_receive(std::size_t action) {
  Channel& channel = channels_[channel_of_[action]];
  const std::size_t ahead = transport_.copies() ? kAhead : 0;
  const std::size_t end = std::min(channel.actions.size(), place_in_channel_[action] + 1 + ahead);
  while (channel.num_posted < end) post_next(channel);
}

at::Tensor Messages::receive(std::size_t action) {
  const Buffer buffer = transport_.wait_receive(std::exchange(tickets_[action], 0));
  return std::move(tensor_in(buffer));
}

void Messages::send(int peer, const MessageTag& tag, at::Tensor tensor) {
  // Bytes are let go as soon as they are taken, without waiting for it.
  while (!sends_.empty() && transport_.is_sent(sends_.front())) {
    transport_.wait_send(sends_.front());
    sends_.pop_front();
  }
  charge_to(tensor, nullptr, MemoryClass::kBoundary);
  if (transport_.copies()) tensor = tensor.contiguous();
  sends_.push_back(transport_.post_send(peer, tag, buffer_of(std::move(tensor))));
}

void Messages::finish() {
  for (; !sends_.empty(); sends_.pop_front()) transport_.wait_send(sends_.front());
}

}  // namespace sluice
