// transport.h - messages and small collectives between ranks, free of tensors.
// Read next: local.h (threads of one process), mpi.h (processes), nccl.h (GPUs).
#pragma once

#include <chrono>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace sluice {

/// Bytes that travel. `owner` keeps them alive and is opaque here: the runtime puts an at::Tensor
/// in it, and a transport inside one process hands the very owner over instead of copying.
struct Buffer {
  std::shared_ptr<void> owner;
  std::byte* data = nullptr;
  std::size_t num_bytes = 0;
};

/// Forward carries activations, backward gradients, collective the parts of collectives
/// (collectives.h; the tag's stage is then their kind), exchange what ranks compute of each other's
/// attention. No two share a queue.
enum class Direction : std::uint8_t { kForward, kBackward, kCollective, kExchange };
inline constexpr int kNumDirections = 4;

/// Names a message on its channel (source rank, destination rank, direction): the producing pass,
/// for checks and for reports. Both ends must agree on it.
struct MessageTag {
  Direction direction = Direction::kForward;
  std::int32_t stage = 0;
  std::int32_t microbatch = 0;
  std::int32_t slice = 0;
  std::int32_t layer = 0;  // of the stage; exchange only
  std::int32_t part = 0;   // which of a layer's messages; exchange only

  friend bool operator==(const MessageTag&, const MessageTag&) = default;
};

/// "activations of stage 2, microbatch 0, slice 0".
std::string to_string(const MessageTag& tag);

/// A queue of messages between two ranks.
struct Channel {
  int source = 0;
  int destination = 0;
  Direction direction = Direction::kForward;

  friend auto operator<=>(const Channel&, const Channel&) = default;
};

/// All channels between `num_ranks` ranks.
std::vector<Channel> every_channel(int num_ranks);

/// One rank's end of the connection to all others. Channels (source, destination, direction)
/// deliver in order; channels are independent. Sends never block; nothing may rest on buffering, so
/// a send is over only when its receive was posted and the data taken. Threads: one thread per
/// Transport, except abort(), which any thread may call. Errors: after abort(), or when a wait
/// passes the time limit, every call throws CommError naming this rank, the peer, the message, the
/// last action done (note_done) and, for an abort, its reason; the first reason wins.
class Transport {
 public:
  /// Handle of a posted send or receive. 0 is no operation.
  using Ticket = std::uint64_t;

  virtual ~Transport();
  virtual int rank() const = 0;
  virtual int size() const = 0;

  /// Makes channels ready. All ranks call it together with the same list, before the first message
  /// of any of them; those that are open stay so. Where channels need no setting up it does
  /// nothing, elsewhere (NCCL) a message on another channel throws InternalError.
  virtual void open(const std::vector<Channel>& channels);

  /// Queues `buffer` for `peer`. The bytes must stay unchanged until wait_send() returned.
  virtual Ticket post_send(int peer, const MessageTag& tag, Buffer buffer) = 0;

  /// Announces that the next message of the channel from `peer` is `tag`. `destination` is where a
  /// transport that copies puts the bytes; one that hands over owners ignores it (then it may be
  /// empty). Received sizes must match when a destination is given.
  virtual Ticket post_receive(int peer, const MessageTag& tag, Buffer destination) = 0;

  /// Waits for a posted receive and returns the bytes: `destination` or the sender's own buffer.
  /// Throws: CommError on timeout or abort, InternalError if the arriving tag is another one.
  virtual Buffer wait_receive(Ticket ticket) = 0;

  /// Waits until a posted send's bytes are free again.
  virtual void wait_send(Ticket ticket) = 0;

  /// Whether wait_send() of a posted send would return at once.
  virtual bool is_sent(Ticket ticket) = 0;

  /// True where a receive needs a destination (processes), false where owners are handed over.
  virtual bool copies() const = 0;

  /// Everybody contributes `mine` (any length, may differ by rank) and gets all contributions, by
  /// rank. All ranks must call it in the same order. Small data only.
  virtual std::vector<std::vector<double>> all_gather(std::span<const double> mine) = 0;

  virtual void barrier() = 0;

  /// A transport of its own among those ranks that give the same `color` (at least 0), numbered by
  /// their rank here. All ranks must call it, in the same order. Reports keep the numbers of the
  /// transport that was split first, and an abort of one reaches the ranks of all. This transport
  /// outlives it.
  virtual std::unique_ptr<Transport> split(int color) = 0;

  /// Stops all ranks: their current and later calls throw CommError with `reason`. Idempotent.
  virtual void abort(const std::string& reason) = 0;

  /// What this rank did last, for reports. Cheap enough for every action.
  void note_done(std::string action);

 protected:
  Transport();
  /// A transport that was split from `parent` reports what was last done on either.
  explicit Transport(const Transport* parent);

  /// " (last done: 1F2)", or nothing before the first note_done().
  std::string last_done() const;

 private:
  struct LastDone;
  std::shared_ptr<LastDone> last_done_;
};

}  // namespace sluice
