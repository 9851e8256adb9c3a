// messages.h - boundary tensors on their way between this rank and others. Read next: engine.h.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <deque>
#include <functional>
#include <vector>

#include "sluice/comm/transport.h"
#include "sluice/program/program.h"

namespace sluice {

/// Names the boundary tensor that `producer` makes.
MessageTag tag_of(const Pass& producer);

/// The sends and receives of one rank's actions. Until it is received a tensor belongs to the
/// transport and no rank's ledger counts it. Sends are not waited for before finish(). Over a
/// transport that copies, one message of each channel more than is needed so far is announced, so
/// that it can arrive while the rank computes.
/// Threads: the rank's.
class Messages {
 public:
  /// Makes room for one boundary tensor.
  using Room = std::function<at::Tensor()>;

  /// Keeps references; both outlive it.
  Messages(const RankProgram& program, Transport& transport);

  /// Begins a run of all actions. `room` is called where the transport copies.
  void begin(Room room);

  /// `action` indexes a kReceive; the receives of a channel are posted in the program's order.
  void post_receive(std::size_t action);

  /// Waits for a posted receive. The tensor is not counted by any ledger yet.
  at::Tensor receive(std::size_t action);

  void send(int peer, const MessageTag& tag, at::Tensor tensor);

  /// Waits until all sends are over.
  void finish();

 private:
  struct Channel {
    int peer = -1;
    Direction direction = Direction::kForward;
    std::vector<std::size_t> actions;  // kReceives in order
    std::size_t num_posted = 0;
  };

  void post_next(Channel& channel);

  const RankProgram& program_;
  Transport& transport_;
  Room room_;
  std::vector<Channel> channels_;
  std::vector<std::size_t> channel_of_;        // by action; of kReceives
  std::vector<std::size_t> place_in_channel_;  // by action; of kReceives
  std::vector<Transport::Ticket> tickets_;     // by action
  std::deque<Transport::Ticket> sends_;
};

}  // namespace sluice
