#include "sluice/train/rank_model.h"

#include <ATen/ops/empty_like.h>

#include <cmath>
#include <map>
#include <utility>

#include "sluice/common/errors.h"
#include "sluice/runtime/allocator.h"
#include "sluice/train/hf_config.h"
#include "sluice/train/tensor_messages.h"

namespace sluice {
namespace {

/// Tied matrices travel outside the Program's passes, under a microbatch no pass has.
MessageTag tied_tag(Direction direction, int last_stage) {
  return {direction, direction == Direction::kBackward ? last_stage : 0, -1, 0};
}

void send_tensor(Transport& transport, int peer, const MessageTag& tag, const at::Tensor& tensor) {
  transport.wait_send(post_tensor(transport, peer, tag, tensor));
}

at::Tensor receive_tensor(Transport& transport, int peer, const MessageTag& tag,
                          const at::Tensor& like) {
  const at::Tensor room = transport.copies() ? at::empty_like(like) : at::Tensor();
  return wait_tensor(transport, post_tensor_receive(transport, peer, tag, room));
}

}  // namespace

RankModel::RankModel(const ModelConfig& config, const Layout& layout, const Placement& placement,
                     int rank, at::Device device, std::uint64_t seed, Shard shard)
    : tied_(config.tie_word_embeddings),
      shard_(shard),
      ledger_(std::make_unique<MemoryLedger>()),
      embedding_rank_(placement.rank_of(0)),
      head_rank_(placement.rank_of(placement.num_stages() - 1)),
      num_stages_(placement.num_stages()) {
  const LedgerScope scope(ledger_.get(), MemoryClass::kWorkspace);
  // Parameters are numbered through the whole model, by name alone.
  std::map<std::string, std::int64_t> order;
  for (const WeightShape& weight : weight_shapes(config)) {
    order.emplace(weight.name, static_cast<std::int64_t>(order.size()));
  }
  for (const int stage : placement.stages_of(rank)) {
    stages_.push_back(
        std::make_unique<Stage>(config, layout[static_cast<std::size_t>(stage)], device, seed));
  }
  if (!layout.front().has_embedding) {
    vocabulary_ = std::make_unique<VocabLayers>(config, placement.num_ranks(), rank, device, seed);
    embedding_rank_ = head_rank_ = rank;  // of this rank's rows
  }
  for (Parameter* parameter : parameters()) {
    charge_to(parameter->gradient, ledger_.get(), MemoryClass::kGradients);
    if (!parameter->spec.tied_to.empty()) {
      tied_head_ = parameter;
      continue;
    }
    charge_to(parameter->value, ledger_.get(), MemoryClass::kWeights);
    trained_.push_back({parameter, {}, order.at(parameter->spec.name)});
  }
  if (config.tie_word_embeddings && vocabulary_) {
    embedding_ = &vocabulary_->parameters().front();
  } else if (config.tie_word_embeddings && rank == embedding_rank_) {
    embedding_ = &stages_.front()->parameters().front();
  }
  if (tied_head_ != nullptr) {
    // On the owner's rank both names are one tensor; the second storage is given back.
    if (embedding_ != nullptr) tied_head_->value.set_(embedding_->value);
    charge_to(tied_head_->value, ledger_.get(), MemoryClass::kWeights);
  }
  for (TrainedParameter& trained : trained_) {
    trained.state = make_adam_state(part_of(*trained.parameter, shard_));
    charge_to(trained.state.exp_avg, ledger_.get(), MemoryClass::kOptimizer);
    charge_to(trained.state.exp_avg_sq, ledger_.get(), MemoryClass::kOptimizer);
    charge_to(trained.state.master, ledger_.get(), MemoryClass::kOptimizer);
  }
}

std::vector<Stage*> RankModel::stages() {
  std::vector<Stage*> pointers;
  for (auto& stage : stages_) pointers.push_back(stage.get());
  return pointers;
}

void RankModel::sum_tied_gradients(Transport& transport) {
  if (embedding_ == nullptr && tied_head_ == nullptr) return;
  const MessageTag tag = tied_tag(Direction::kBackward, num_stages_ - 1);
  if (embedding_ != nullptr && tied_head_ != nullptr) {
    embedding_->gradient.add_(tied_head_->gradient);
  } else if (embedding_ != nullptr) {
    embedding_->gradient.add_(receive_tensor(transport, head_rank_, tag, embedding_->gradient));
  } else {
    send_tensor(transport, embedding_rank_, tag, tied_head_->gradient);
  }
}

std::vector<Parameter*> RankModel::parameters() {
  std::vector<Parameter*> all;
  const auto add = [&](std::vector<Parameter>& parameters) {
    for (Parameter& parameter : parameters) all.push_back(&parameter);
  };
  for (auto& stage : stages_) add(stage->parameters());
  if (vocabulary_) add(vocabulary_->parameters());
  return all;
}

void RankModel::zero_gradients() {
  for (Parameter* parameter : parameters()) parameter->gradient.zero_();
}

void RankModel::reset_masters() {
  for (TrainedParameter& trained : trained_) {
    if (trained.state.master.defined()) {
      trained.state.master.copy_(part_of(trained.parameter->value, shard_));
    }
  }
}

void RankModel::spread_tied(Transport& transport) {
  if (!tied_ || embedding_rank_ == head_rank_) return;
  const MessageTag tag = tied_tag(Direction::kForward, num_stages_ - 1);
  if (embedding_ != nullptr) {
    send_tensor(transport, head_rank_, tag, embedding_->value);
  } else if (tied_head_ != nullptr) {
    tied_head_->value.copy_(receive_tensor(transport, embedding_rank_, tag, tied_head_->value));
  }
  // The matrix was handed over by reference: nobody may change it before it was copied.
  if (!transport.copies()) transport.barrier();
}

std::vector<Parameter*> RankModel::owned() const {
  std::vector<Parameter*> parameters;
  for (const TrainedParameter& trained : trained_) parameters.push_back(trained.parameter);
  return parameters;
}

UpdateResult RankModel::share_norm(Transport& world, const std::vector<double>& share) const {
  // [number of squares, (order, square) ..., share ...]
  std::vector<double> mine{static_cast<double>(trained_.size())};
  for (const TrainedParameter& trained : trained_) {
    mine.push_back(static_cast<double>(trained.order));
    mine.push_back(sum_squares(part_of(trained.parameter->gradient, shard_)));
  }
  mine.insert(mine.end(), share.begin(), share.end());
  UpdateResult result;
  // Parts and shards of one parameter add up in the order of ranks.
  std::map<std::int64_t, double> squares;
  for (const auto& one : world.all_gather(mine)) {
    const auto count = static_cast<std::size_t>(one[0]);
    for (std::size_t i = 0; i < count; ++i) {
      squares[static_cast<std::int64_t>(one[1 + 2 * i])] += one[2 + 2 * i];
    }
    result.shared.emplace_back(one.begin() + 1 + 2 * static_cast<std::ptrdiff_t>(count), one.end());
  }
  double sum = 0.0;
  for (const auto& [order, square] : squares) sum += square;
  result.gradient_norm = std::sqrt(sum);
  return result;
}

void RankModel::begin_reduction(std::size_t chunk, Transport& replicas) {
  if (shard_.count == 1) return;
  std::vector<Parameter*> bucket;
  for (Parameter& parameter : stages_.at(chunk)->parameters()) {
    const bool waits = &parameter == tied_head_ || (tied_ && &parameter == embedding_);
    if (!waits) bucket.push_back(&parameter);
  }
  if (!reduction_) reduction_.emplace(replicas);
  reduction_->begin(std::move(bucket));
}

UpdateResult RankModel::update(const RankLinks& links, const AdamOptions& options,
                               double learning_rate, double gradient_clip, std::int64_t step,
                               const std::vector<double>& share) {
  sum_tied_gradients(links.pipeline);
  if (shard_.count > 1) {
    if (!reduction_) reduction_.emplace(links.replicas);
    reduction_->finish(owned());
    reduction_.reset();
  }
  UpdateResult result = share_norm(links.world, share);
  const double scale = gradient_clip > 0.0 && result.gradient_norm > gradient_clip
                           ? gradient_clip / result.gradient_norm
                           : 1.0;
  for (TrainedParameter& trained : trained_) {
    Parameter part = part_of(*trained.parameter, shard_);
    adamw_step(part, trained.state, options, learning_rate, scale, step);
  }
  if (shard_.count > 1) gather_values(owned(), links.replicas);
  if (tied_head_ != nullptr) tied_head_->gradient.zero_();
  spread_tied(links.pipeline);
  return result;
}

UpdateResult RankModel::update(Transport& pipeline, const AdamOptions& options,
                               double learning_rate, double gradient_clip, std::int64_t step,
                               const std::vector<double>& share) {
  SLUICE_CHECK(shard_.count == 1, "{} shards and no replicas", shard_.count);
  return update({pipeline, pipeline, pipeline}, options, learning_rate, gradient_clip, step, share);
}

}  // namespace sluice
