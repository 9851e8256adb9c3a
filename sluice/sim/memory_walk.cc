#include "sluice/sim/memory_walk.h"

#include <algorithm>

#include "sluice/common/errors.h"

namespace sluice {

MemoryWalk::MemoryWalk(const Program& program, const MemoryModel& model, int rank)
    : model_(model),
      rank_(rank),
      num_slices_(program.num_slices),
      keeps_saved_(!program.forward_only),
      form_(program.vocab),
      forward_(model.stages.size()),
      backward_(model.stages.size()) {
  const Placement& placement = program.placement;
  SLUICE_CHECK(static_cast<int>(model.stages.size()) == placement.num_stages(),
               "{} stages in the memory model, {} in the program", model.stages.size(),
               placement.num_stages());
  for (const int stage : placement.stages_of(rank)) {
    const auto s = static_cast<std::size_t>(stage);
    const StageMemory& memory = model.stages[s];
    live(MemoryClass::kWeights) += memory.weights;
    live(MemoryClass::kGradients) += memory.gradients;
    live(MemoryClass::kOptimizer) += memory.optimizer;
    // A boundary tensor and its gradient have the same size.
    const bool sharded = !model.vocabulary.empty();
    if (stage == 0 && sharded) {  // from E, and by a collective to G
      forward_[s].received = memory.boundary_input;
      backward_[s].made = memory.boundary_input;
    }
    if (stage + 1 == placement.num_stages() && sharded) {  // by a collective to S, from S or T
      forward_[s].made = memory.boundary_output;
      backward_[s].received = memory.boundary_output;
    }
    if (stage > 0) {
      const bool local = placement.rank_of(stage - 1) == rank;
      (local ? forward_[s].taken : forward_[s].received) =
          local ? model.stages[s - 1].boundary_output : memory.boundary_input;
      backward_[s].made = memory.boundary_input;
      backward_[s].made_for_other = !local;
    }
    if (stage + 1 < placement.num_stages()) {
      const bool local = placement.rank_of(stage + 1) == rank;
      (local ? backward_[s].taken : backward_[s].received) =
          local ? model.stages[s + 1].boundary_input : memory.boundary_output;
      forward_[s].made = memory.boundary_output;
      forward_[s].made_for_other = !local;
    }
  }
  if (!model.vocabulary.empty()) {
    const VocabMemory& memory = model.vocabulary[static_cast<std::size_t>(rank)];
    live(MemoryClass::kWeights) += memory.weights;
    live(MemoryClass::kGradients) += memory.gradients;
    live(MemoryClass::kOptimizer) += memory.optimizer;
    const bool has_last = placement.rank_of(placement.num_stages() - 1) == rank;
    const auto num_units = static_cast<std::size_t>(program.num_microbatches * program.num_slices);
    loss_users_.assign(num_units, has_last ? 2 : 1);
    loss_is_live_.assign(num_units, false);
  }
  note_peaks();
}

const VocabMemory* MemoryWalk::shard_of(const Pass& pass) const {
  const bool is_shard =
      pass.kind == PassKind::kEmbedForward || pass.kind == PassKind::kEmbedBackward ||
      pass.kind == PassKind::kVocabForward || pass.kind == PassKind::kVocabBackward;
  static constexpr VocabMemory kUnknown;
  if (!is_shard) return nullptr;
  return model_.vocabulary.empty() ? &kUnknown
                                   : &model_.vocabulary[static_cast<std::size_t>(pass.stage)];
}

void MemoryWalk::begin_shard(const Pass& pass, const VocabMemory& memory) {
  std::int64_t& vocabulary = live(MemoryClass::kVocabulary);
  if (pass.kind == PassKind::kEmbedForward) vocabulary += memory.embedded;
  if (pass.kind == PassKind::kVocabForward) {
    vocabulary += (keeps_saved_ ? memory.saved : 0) + memory.statistics;
    if (keeps_saved_ && form_ == VocabForm::kParallel2) vocabulary += memory.hidden_gradient;
    live(MemoryClass::kWorkspace) += memory.workspace_forward;
  }
  if (pass.kind == PassKind::kVocabBackward) {
    begin_token_loss(pass);
    live(MemoryClass::kWorkspace) += memory.workspace_backward;
  }
  note_peaks();
}

void MemoryWalk::end_shard(const Pass& pass, const VocabMemory& memory) {
  if (pass.kind == PassKind::kVocabForward) {
    live(MemoryClass::kWorkspace) -= memory.workspace_forward;
  } else if (pass.kind == PassKind::kVocabBackward) {
    live(MemoryClass::kWorkspace) -= memory.workspace_backward;
    live(MemoryClass::kVocabulary) -= memory.saved;
    if (form_ == VocabForm::kParallel1) live(MemoryClass::kVocabulary) += memory.hidden_gradient;
    note_peaks();
    end_token_loss(pass);
  }
  note_peaks();
}

bool MemoryWalk::starts_from_shards(const Pass& pass) const {
  return !loss_users_.empty() && is_backward(pass.kind) &&
         static_cast<std::size_t>(pass.stage) + 1 == model_.stages.size();
}

void MemoryWalk::begin_token_loss(const Pass& pass) {
  if (loss_users_.empty()) return;
  const auto unit = static_cast<std::size_t>(pass.microbatch * num_slices_ + pass.slice);
  if (loss_is_live_[unit]) return;
  loss_is_live_[unit] = true;
  live(MemoryClass::kVocabulary) += model_.vocabulary[static_cast<std::size_t>(rank_)].token_loss;
}

void MemoryWalk::end_token_loss(const Pass& pass) {
  if (loss_users_.empty()) return;
  const auto unit = static_cast<std::size_t>(pass.microbatch * num_slices_ + pass.slice);
  if (--loss_users_[unit] > 0) return;
  live(MemoryClass::kVocabulary) -= model_.vocabulary[static_cast<std::size_t>(rank_)].token_loss;
}

bool MemoryWalk::post_collective(const Action& action) {
  if (model_.vocabulary.empty()) return false;
  const VocabMemory& memory = model_.vocabulary[static_cast<std::size_t>(rank_)];
  const bool is_root = action.peer == rank_;
  std::int64_t boundary = 0, vocabulary = 0;
  switch (action.collective) {
    case Collective::kReduceEmbedding:
      vocabulary = memory.embedded;
      break;
    case Collective::kBroadcastHidden:
      if (is_root) boundary = forward_.back().made;
      break;
    case Collective::kGatherStatistics:
      vocabulary = memory.statistics;
      break;
    case Collective::kReduceHiddenGradient:
      vocabulary = memory.hidden_gradient;
      break;
    case Collective::kBroadcastEmbeddingGradient:
      if (is_root) boundary = backward_.front().made;
      break;
    default:
      break;
  }
  live(MemoryClass::kBoundary) -= boundary;
  live(MemoryClass::kVocabulary) -= vocabulary;
  return boundary + vocabulary != 0;
}

const MemoryWalk::Flow& MemoryWalk::flow_of(const Pass& pass) const {
  static constexpr Flow kNothing;
  const auto stage = static_cast<std::size_t>(pass.stage);
  switch (pass.kind) {
    case PassKind::kForward:
      return forward_[stage];
    case PassKind::kBackward:
    case PassKind::kBackwardInput:
      return backward_[stage];
    default:
      return kNothing;
  }
}

bool MemoryWalk::makes_kv_gradients(const Pass& pass) const {
  return num_slices_ > 1 && pass.slice + 1 == num_slices_ && is_backward(pass.kind);
}

std::int64_t MemoryWalk::workspace_of(const Pass& pass) const {
  const StageMemory& memory = stage_of(pass);
  const StageMemory::LastSlice& last = memory.last_slice;
  const bool is_last = makes_kv_gradients(pass);
  switch (pass.kind) {
    case PassKind::kForward:
      return memory.workspace_forward;
    case PassKind::kBackward:
      return is_last && last.workspace_backward != 0 ? last.workspace_backward
                                                     : memory.workspace_backward;
    case PassKind::kBackwardInput:
      return is_last && last.workspace_backward_input != 0 ? last.workspace_backward_input
                                                           : memory.workspace_backward_input;
    case PassKind::kBackwardWeight:
      return memory.workspace_backward_weight;
    default:
      return 0;
  }
}

void MemoryWalk::begin(const Pass& pass) {
  if (const VocabMemory* shard = shard_of(pass)) return begin_shard(pass, *shard);
  if (starts_from_shards(pass)) {
    begin_token_loss(pass);
    note_peaks();
    end_token_loss(pass);
  }
  live(MemoryClass::kBoundary) += flow_of(pass).received;
  note_inside(pass);
  live(MemoryClass::kWorkspace) += workspace_of(pass);
  // A forward's saved tensors show in the curve from its start.
  if (pass.kind == PassKind::kForward) {
    if (keeps_saved_) live(MemoryClass::kActivations) += stage_of(pass).saved;
    live(MemoryClass::kKvCache) += stage_of(pass).kv_cache;
  }
  note_class_peaks();
}

std::int64_t MemoryWalk::kv_gradients_made(const Pass& pass) const {
  if (!makes_kv_gradients(pass)) return 0;
  const StageMemory& memory = stage_of(pass);
  return memory.last_slice.kv_gradient != 0 ? memory.last_slice.kv_gradient
                                            : num_slices_ * memory.kv_gradient;
}

std::int64_t MemoryWalk::inside_backward(const Pass& pass) const {
  const StageMemory& memory = stage_of(pass);
  const bool full = pass.kind == PassKind::kBackward;
  std::int64_t peak = full ? memory.peak_backward : memory.peak_backward_input;
  if (makes_kv_gradients(pass)) {
    peak = full ? memory.last_slice.peak_backward : memory.last_slice.peak_backward_input;
  }
  return peak != 0 ? peak : memory.saved + workspace_of(pass) + kv_gradients_made(pass);
}

// The total inside a pass is less than the sum of what its classes reach: a forward's workspace is
// largest before all is saved, a backward's after part of it was freed.
void MemoryWalk::note_inside(const Pass& pass) {
  const StageMemory& memory = stage_of(pass);
  std::int64_t own_before = 0;  // of the unit's own activations, when the pass begins
  std::int64_t inside = 0;      // its activations and workspace at their largest
  switch (pass.kind) {
    case PassKind::kForward:
      inside = memory.peak_forward != 0 && keeps_saved_
                   ? memory.peak_forward
                   : memory.workspace_forward + memory.kv_cache + (keeps_saved_ ? memory.saved : 0);
      break;
    case PassKind::kBackward:
      own_before = memory.saved;
      inside = inside_backward(pass);
      break;
    case PassKind::kBackwardInput:
      own_before = memory.saved;
      inside = inside_backward(pass);
      note_class(MemoryClass::kActivations, memory.peak_saved_backward_input - own_before);
      break;
    case PassKind::kBackwardWeight:
      own_before = memory.saved_for_weight;
      inside = own_before + memory.workspace_backward_weight;
      break;
    default:
      return;
  }
  note_class(MemoryClass::kKvGradient, kv_gradients_made(pass));
  BytesByClass now = bytes_;
  if (pass.kind == PassKind::kForward) {
    const std::int64_t saved = keeps_saved_ ? memory.saved : 0;
    now[static_cast<std::size_t>(MemoryClass::kActivations)] += saved;
    now[static_cast<std::size_t>(MemoryClass::kKvCache)] += memory.kv_cache;
    inside -= saved + memory.kv_cache;
  }
  now[static_cast<std::size_t>(MemoryClass::kWorkspace)] += inside - own_before;
  note_total(now);
}

void MemoryWalk::end(const Pass& pass) {
  if (const VocabMemory* shard = shard_of(pass)) return end_shard(pass, *shard);
  const StageMemory& memory = stage_of(pass);
  const Flow& flow = flow_of(pass);
  live(MemoryClass::kWorkspace) -= workspace_of(pass);
  live(MemoryClass::kBoundary) += flow.made - flow.received - flow.taken;
  std::int64_t& saved = live(MemoryClass::kActivations);
  switch (pass.kind) {
    case PassKind::kForward:  // nobody reads keys and values after the last slice
      if (!keeps_saved_ && pass.slice + 1 == num_slices_) {
        live(MemoryClass::kKvCache) -= num_slices_ * memory.kv_cache;
      }
      break;
    case PassKind::kBackward:
      saved -= memory.saved;
      end_slice(pass);
      break;
    case PassKind::kBackwardInput:
      saved += memory.saved_for_weight - memory.saved;
      end_slice(pass);
      break;
    case PassKind::kBackwardWeight:
      saved -= memory.saved_for_weight;
      break;
    default:
      break;
  }
  note_peaks();
}

void MemoryWalk::end_slice(const Pass& pass) {
  const StageMemory& memory = stage_of(pass);
  live(MemoryClass::kKvCache) -= memory.kv_cache;
  live(MemoryClass::kKvGradient) +=
      (makes_kv_gradients(pass) ? num_slices_ - 1 : -1) * memory.kv_gradient;
}

bool MemoryWalk::post(const Pass& pass) {
  if (shard_of(pass) != nullptr) return false;
  const Flow& flow = flow_of(pass);
  if (!flow.made_for_other || flow.made == 0) return false;
  live(MemoryClass::kBoundary) -= flow.made;
  return true;
}

void MemoryWalk::offload(const Pass& pass) {
  live(MemoryClass::kActivations) -= stage_of(pass).movable;
}

void MemoryWalk::reload(const Pass& pass) {
  live(MemoryClass::kActivations) += stage_of(pass).movable;
  note_peaks();
}

void MemoryWalk::note_peaks() {
  note_class_peaks();
  note_total(bytes_);
}

void MemoryWalk::note_class(MemoryClass memory_class, std::int64_t more) {
  auto& peak = peaks_.by_class[static_cast<std::size_t>(memory_class)];
  peak = std::max(peak, live(memory_class) + more);
}

void MemoryWalk::note_class_peaks() {
  for (std::size_t c = 0; c < bytes_.size(); ++c) {
    peaks_.by_class[c] = std::max(peaks_.by_class[c], bytes_[c]);
  }
}

void MemoryWalk::note_total(const BytesByClass& bytes) {
  if (const std::int64_t total = total_bytes(bytes); total > peaks_.total) {
    peaks_.total = total;
    peaks_.at_total_peak = bytes;
  }
}

}  // namespace sluice
