#include "sluice/train/data_parallel.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <algorithm>
#include <utility>

#include "sluice/common/errors.h"
#include "sluice/model/vocab_rows.h"
#include "sluice/train/tensor_messages.h"
#include "sluice/train/tensors.h"

namespace sluice {
namespace {

// Outside the Program's passes: microbatches that no pass has.
constexpr std::int32_t kGradient = -2, kValue = -3, kState = -4;

MessageTag tag_of(std::int32_t what, std::size_t parameter, int part) {
  return {Direction::kBackward, static_cast<std::int32_t>(parameter), what, part};
}

std::int64_t begin_of(std::int64_t num_elements, int index, int count) {
  constexpr std::int64_t kGrain = 16;
  if (index == count) return num_elements;
  const std::int64_t begin = num_elements * index / count;
  return std::min(num_elements, (begin + kGrain - 1) / kGrain * kGrain);
}

Shard shard_of(const Transport& replicas, int rank) { return {rank, replicas.size()}; }

/// What was sent by reference is read by now, on every rank.
void release(Transport& replicas) {
  if (!replicas.copies()) replicas.barrier();
}

/// On rank 0 a tensor of `sizes` from the part that each rank has of it, `place(whole, rank)` being
/// a rank's; undefined elsewhere, and where there is nothing to gather.
template <typename Place>
at::Tensor gather_parts(const at::Tensor& mine, at::IntArrayRef sizes, std::size_t number,
                        Transport& transport, Place place) {
  if (!mine.defined()) return {};
  if (transport.rank() != 0) {
    transport.wait_send(post_tensor(transport, 0, tag_of(kState, number, transport.rank()), mine));
    return {};
  }
  at::Tensor whole = at::empty(sizes, mine.options());
  place(whole, 0).copy_(mine);
  for (int peer = 1; peer < transport.size(); ++peer) {
    const at::Tensor room = place(whole, peer);
    const at::Tensor part = wait_tensor(
        transport, post_tensor_receive(transport, peer, tag_of(kState, number, peer), room));
    if (!transport.copies()) room.copy_(part);
  }
  return whole;
}

}  // namespace

at::Tensor part_of(const at::Tensor& tensor, const Shard& shard) {
  if (shard.count == 1) return tensor;
  const std::int64_t begin = begin_of(tensor.numel(), shard.index, shard.count);
  const std::int64_t end = begin_of(tensor.numel(), shard.index + 1, shard.count);
  return tensor.view(-1).narrow(0, begin, end - begin);
}

Parameter part_of(const Parameter& parameter, const Shard& shard) {
  return {parameter.spec, part_of(parameter.value, shard), part_of(parameter.gradient, shard)};
}

void GradientReduction::post(Parameter* parameter) {
  const at::Tensor& gradient = parameter->gradient;
  const int rank = replicas_.rank();
  const at::Tensor own = part_of(gradient, shard_of(replicas_, rank));
  const std::size_t number = begun_.size();
  Pending pending{.parameter = parameter, .sends = {}, .receives = {}};
  for (int peer = 0; peer < replicas_.size(); ++peer) {
    if (peer == rank) {
      pending.receives.push_back(0);
      continue;
    }
    const at::Tensor room = replicas_.copies() ? at::empty_like(own) : at::Tensor();
    pending.receives.push_back(
        post_tensor_receive(replicas_, peer, tag_of(kGradient, number, rank), room));
    pending.sends.push_back(post_tensor(replicas_, peer, tag_of(kGradient, number, peer),
                                        part_of(gradient, shard_of(replicas_, peer))));
  }
  begun_.push_back(parameter);
  pending_.push_back(std::move(pending));
}

/// Adds the parts that all ranks have of this rank's range, in rank order.
void GradientReduction::sum_pending() {
  const int rank = replicas_.rank();
  for (Pending& pending : pending_) {
    const at::Tensor own = part_of(pending.parameter->gradient, shard_of(replicas_, rank));
    at::Tensor sum;
    for (int peer = 0; peer < replicas_.size(); ++peer) {
      const at::Tensor part =
          peer == rank ? own
                       : wait_tensor(replicas_, pending.receives[static_cast<std::size_t>(peer)]);
      if (peer == 0) {
        sum = rank == 0 ? own : part.clone();
      } else {
        sum.add_(part);
      }
    }
    if (rank != 0) own.copy_(sum);
    for (const auto ticket : pending.sends) replicas_.wait_send(ticket);
  }
  pending_.clear();
}

void GradientReduction::begin(std::vector<Parameter*> bucket) {
  sum_pending();
  for (Parameter* parameter : bucket) post(parameter);
}

void GradientReduction::finish(const std::vector<Parameter*>& parameters) {
  sum_pending();
  for (Parameter* parameter : parameters) {
    if (std::find(begun_.begin(), begun_.end(), parameter) != begun_.end()) continue;
    post(parameter);
    sum_pending();
  }
  SLUICE_CHECK(begun_.size() == parameters.size(), "{} gradients were summed of {}", begun_.size(),
               parameters.size());
  begun_.clear();
  release(replicas_);
  for (Parameter* parameter : parameters) {
    for (int other = 0; other < replicas_.size(); ++other) {
      if (other == replicas_.rank()) continue;
      part_of(parameter->gradient, shard_of(replicas_, other)).zero_();
    }
  }
}

void reduce_gradients(const std::vector<Parameter*>& parameters, Transport& replicas) {
  GradientReduction(replicas).finish(parameters);
}

void gather_values(const std::vector<Parameter*>& parameters, Transport& replicas) {
  const int rank = replicas.rank();
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const at::Tensor& value = parameters[i]->value;
    std::vector<Transport::Ticket> sends, receives;
    for (int peer = 0; peer < replicas.size(); ++peer) {
      if (peer == rank) continue;
      receives.push_back(post_tensor_receive(replicas, peer, tag_of(kValue, i, peer),
                                             part_of(value, shard_of(replicas, peer))));
      sends.push_back(post_tensor(replicas, peer, tag_of(kValue, i, rank),
                                  part_of(value, shard_of(replicas, rank))));
    }
    auto receive = receives.begin();
    for (int peer = 0; peer < replicas.size(); ++peer) {
      if (peer == rank) continue;
      const at::Tensor part = wait_tensor(replicas, *receive++);
      if (!replicas.copies()) part_of(value, shard_of(replicas, peer)).copy_(part);
    }
    for (const auto ticket : sends) replicas.wait_send(ticket);
  }
  release(replicas);
}

AdamState gather_state(const Parameter& parameter, const AdamState& own, Transport& replicas) {
  const auto gather = [&](const at::Tensor& mine, std::size_t number) {
    return gather_parts(mine, parameter.value.sizes(), number, replicas,
                        [&](const at::Tensor& whole, int rank) {
                          return part_of(whole, shard_of(replicas, rank));
                        });
  };
  AdamState whole;
  whole.exp_avg = gather(own.exp_avg, 0);
  whole.exp_avg_sq = gather(own.exp_avg_sq, 1);
  whole.master = gather(own.master, 2);
  return whole;
}

WholeMatrix gather_rows(const Parameter& rows, const AdamState& state, Transport& pipeline) {
  const std::int64_t full_rows = rows.spec.full_rows;
  std::vector<std::int64_t> sizes = rows.spec.shape;
  sizes.front() = full_rows;
  const auto gather = [&](const at::Tensor& mine, std::size_t number) {
    return gather_parts(mine, sizes, number, pipeline, [&](const at::Tensor& whole, int rank) {
      const VocabRows theirs = vocab_rows(full_rows, pipeline.size(), rank);
      return whole.narrow(0, theirs.first, theirs.count);
    });
  };
  WholeMatrix whole;
  whole.parameter.spec = rows.spec;
  whole.parameter.spec.shape = sizes;
  whole.parameter.spec.first_row = whole.parameter.spec.full_rows = 0;
  whole.parameter.value = gather(rows.value, 0);
  whole.state.exp_avg = gather(state.exp_avg, 1);
  whole.state.exp_avg_sq = gather(state.exp_avg_sq, 2);
  whole.state.master = gather(state.master, 3);
  return whole;
}

void load_state_part(const TensorFiles& optimizer, const Parameter& parameter, const Shard& shard,
                     AdamState& own) {
  if (shard.count == 1) return load_state(optimizer, parameter, own);
  const auto room = [&](const at::Tensor& part) {
    return part.defined() ? at::empty(parameter.value.sizes(), part.options()) : at::Tensor();
  };
  AdamState whole{room(own.exp_avg), room(own.exp_avg_sq), room(own.master)};
  load_state(optimizer, parameter, whole);
  own.exp_avg.copy_(part_of(whole.exp_avg, shard));
  own.exp_avg_sq.copy_(part_of(whole.exp_avg_sq, shard));
  if (own.master.defined()) own.master.copy_(part_of(whole.master, shard));
}

}  // namespace sluice
