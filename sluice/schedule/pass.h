// pass.h - one unit of compute in a schedule. Read next: schedule.h.
#pragma once

#include <compare>
#include <cstdint>
#include <string>
#include <string_view>

namespace sluice {

/// What a pass does. The letters are PyTorch's where PyTorch has one (F, B, I, W); E, G, S, T are
/// the vocabulary passes (Vocabulary Parallelism, arXiv 2411.05288) and D, U the offload copies
/// (PipeOffload, arXiv 2503.01328).
enum class PassKind : std::uint8_t {
  kForward,         // F
  kBackward,        // B: backward for the input, then backward for the weights
  kBackwardInput,   // I
  kBackwardWeight,  // W
  kEmbedForward,    // E: input embedding shard, look-up
  kEmbedBackward,   // G: input embedding shard, gradient
  kVocabForward,    // S: output layer shard, logits and statistics
  kVocabBackward,   // T: output layer shard, gradients
  kOffload,         // D: copy a forward's saved activations out of device memory
  kReload,          // U: copy them back
};
inline constexpr int kNumPassKinds = 10;

/// The letter of a kind, e.g. 'F'.
char letter(PassKind kind);

/// B or I: takes the gradient of a stage's output and makes that of its input.
constexpr bool is_backward(PassKind kind) {
  return kind == PassKind::kBackward || kind == PassKind::kBackwardInput;
}
/// F, B or I: runs a stage's layers, attention included, and makes what its neighbour waits for.
constexpr bool runs_layers(PassKind kind) {
  return kind == PassKind::kForward || is_backward(kind);
}
/// D or U.
constexpr bool is_copy(PassKind kind) {
  return kind == PassKind::kOffload || kind == PassKind::kReload;
}

/// One pass: what, where, on which part of the batch. All indices are global and 0-based. For E, G,
/// S and T `stage` is the rank that holds the shard; for D and U it is the stage of the forward
/// whose activations move.
struct Pass {
  PassKind kind = PassKind::kForward;
  std::int32_t stage = 0;
  std::int32_t microbatch = 0;
  std::int32_t slice = 0;

  friend auto operator<=>(const Pass&, const Pass&) = default;
};

/// "2F0" for stage 2, forward, microbatch 0; "2F0.3" for slice 3 when `with_slice` is set.
std::string to_string(const Pass& pass, bool with_slice = false);

/// Parses the text form, with or without ".slice"; the whole text must be used.
/// Throws: InvalidArgument with the text and the expected form.
Pass parse_pass(std::string_view text);

}  // namespace sluice
