#include "sluice/train/batches.h"

#include <algorithm>
#include <bit>
#include <utility>
#include <vector>

#include "sluice/common/errors.h"

namespace sluice {
namespace {

constexpr int kRounds = 8;

/// Spreads every bit of `x` over the whole word (the finalizer of SplitMix64).
std::uint64_t mix(std::uint64_t x) {
  x += 0x9E3779B97F4A7C15;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EB;
  return x ^ (x >> 31);
}

}  // namespace

Permutation::Permutation(std::int64_t size, std::uint64_t key)
    : size_(static_cast<std::uint64_t>(size)), key_(key) {
  SLUICE_CHECK(size >= 1, "size {}", size);
  // The smallest even number of bits that holds size - 1.
  half_bits_ = std::max<int>(1, (static_cast<int>(std::bit_width(size_ - 1)) + 1) / 2);
}

std::int64_t Permutation::operator()(std::int64_t i) const {
  // A Feistel network permutes the numbers of 2 * half_bits_ bits; walking on from values outside
  // [0, size) leaves a permutation of those inside, after 4 rounds of it at worst on average.
  const std::uint64_t mask = (std::uint64_t{1} << half_bits_) - 1;
  auto value = static_cast<std::uint64_t>(i);
  do {
    std::uint64_t left = value >> half_bits_, right = value & mask;
    for (std::uint64_t round = 0; round < kRounds; ++round) {
      const std::uint64_t scrambled = mix(right ^ mix(key_ + round));
      left = std::exchange(right, left ^ (scrambled & mask));
    }
    value = left << half_bits_ | right;
  } while (value >= size_);
  return static_cast<std::int64_t>(value);
}

BatchPlan::BatchPlan(TokenSource source, std::int64_t sequence_length, std::uint64_t seed,
                     Order order)
    : source_(std::move(source)),
      sequence_length_(sequence_length),
      num_sequences_((source_.num_tokens() - 1) / sequence_length),
      seed_(seed),
      order_(order) {
  if (num_sequences_ < 1) {
    throw InvalidArgument(fmt::format(
        "data.paths: {} tokens are too few for one sequence of data.sequence_length + 1 "
        "= {}; name more data or shorten the sequence",
        source_.num_tokens(), sequence_length + 1));
  }
}

std::int64_t BatchPlan::sequence_of(std::int64_t sample) const {
  SLUICE_CHECK(sample >= 0, "sample {}", sample);
  if (order_ == Order::kInOrder) return sample;
  const auto epoch = static_cast<std::uint64_t>(sample / num_sequences_);
  const Permutation shuffle(num_sequences_, mix(mix(seed_) ^ epoch));
  return shuffle(sample % num_sequences_);
}

std::int64_t BatchPlan::read(std::int64_t first_sample, std::span<std::int64_t> tokens_BT,
                             std::span<std::int64_t> targets_BT) const {
  const auto length = static_cast<std::size_t>(sequence_length_);
  SLUICE_CHECK(tokens_BT.size() == targets_BT.size() && tokens_BT.size() % length == 0,
               "{} tokens, {} targets, sequences of {}", tokens_BT.size(), targets_BT.size(),
               length);
  std::vector<std::int64_t> sequence(length + 1);
  std::int64_t num_targets = 0;
  for (std::size_t b = 0; b < tokens_BT.size() / length; ++b) {
    const auto tokens = tokens_BT.subspan(b * length, length);
    const auto targets = targets_BT.subspan(b * length, length);
    const std::int64_t sample = first_sample + static_cast<std::int64_t>(b);
    if (order_ == Order::kInOrder && sample >= num_sequences_) {
      std::fill(tokens.begin(), tokens.end(), 0);
      std::fill(targets.begin(), targets.end(), kIgnoreTarget);
      continue;
    }
    source_.read(sequence_of(sample) * sequence_length_, sequence);
    std::copy(sequence.begin(), sequence.end() - 1, tokens.begin());
    std::copy(sequence.begin() + 1, sequence.end(), targets.begin());
    num_targets += sequence_length_;
  }
  return num_targets;
}

}  // namespace sluice
