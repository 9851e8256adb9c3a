// batches.h - which tokens every step trains on. Free of torch. Read next: learning_rate.h.
//
// The stream of N tokens is cut into n = (N - 1) / T sequences: sequence k reads tokens [kT, kT +
// T) and its targets are tokens [kT + 1, kT + T + 1). Every token is a target once per epoch;
// documents follow each other within a sequence, and the first token of a document is a target like
// any other.
#pragma once

#include <cstdint>
#include <span>

#include "sluice/train/tokens.h"

namespace sluice {

/// A random order of [0, size), given by a key: element i in constant time and no memory, so that a
/// run can begin anywhere.
class Permutation {
 public:
  /// REQUIRES: size >= 1.
  Permutation(std::int64_t size, std::uint64_t key);

  /// REQUIRES: 0 <= i < size.
  std::int64_t operator()(std::int64_t i) const;

 private:
  std::uint64_t size_;
  std::uint64_t key_;
  int half_bits_ = 1;
};

/// Target of a position without one; the loss leaves it out.
inline constexpr std::int64_t kIgnoreTarget = -100;

/// The endless sequence of samples of a run. Sample i is a function of (stream, T, seed, i) alone:
/// not of ranks, microbatches or what was read before, so that a run resumes from one number. Each
/// epoch shuffles anew.
/// Threads: any.
class BatchPlan {
 public:
  enum class Order : std::uint8_t {
    kShuffled,  // epochs without end
    kInOrder,   // the stream once; samples beyond it have no targets
  };

  /// Throws: InvalidArgument when the stream is shorter than one sequence.
  BatchPlan(TokenSource source, std::int64_t sequence_length, std::uint64_t seed, Order order);

  /// Sequences of one epoch.
  std::int64_t num_sequences() const { return num_sequences_; }
  std::int64_t sequence_length() const { return sequence_length_; }

  /// The sequence that sample i reads. REQUIRES: i >= 0, and i < num_sequences() in order.
  std::int64_t sequence_of(std::int64_t sample) const;

  /// Reads samples [first, first + B) into tokens_BT and targets_BT, both B x T. Returns how many
  /// targets are not kIgnoreTarget. The global batch of step s (from 0) is samples [s G, (s + 1)
  /// G), its microbatch m is samples [s G + m B, s G + (m + 1) B). REQUIRES: sizes equal and a
  /// multiple of T. Throws: Failure for a token outside the vocabulary.
  std::int64_t read(std::int64_t first_sample, std::span<std::int64_t> tokens_BT,
                    std::span<std::int64_t> targets_BT) const;

 private:
  TokenSource source_;
  std::int64_t sequence_length_;
  std::int64_t num_sequences_;
  std::uint64_t seed_;
  Order order_;
};

}  // namespace sluice
