// data_parallel.h - gradients, optimizer state and weights over the ranks that hold the same stages
// for different data (ZeRO-1, arXiv 1910.02054). Read next: rank_model.h.
//
// Each of d ranks owns one range of the elements of every parameter: it sums the gradients of its
// range over all d ranks, in rank order, updates its range, and hands the new values to the others.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "sluice/comm/transport.h"
#include "sluice/model/parameter.h"
#include "sluice/train/optimizer.h"
#include "sluice/train/tensor_files.h"

namespace sluice {

/// Which of `count` ranges of every parameter a rank owns.
struct Shard {
  int index = 0;
  int count = 1;
};

/// The elements of `tensor` that `shard` owns, as a flat view; the whole tensor with its shape
/// where there is one shard. Ranges begin at multiples of 16 elements, so that vector loops see the
/// same alignment everywhere.
at::Tensor part_of(const at::Tensor& tensor, const Shard& shard);

/// A parameter whose value and gradient are those of `shard` alone: views.
Parameter part_of(const Parameter& parameter, const Shard& shard);

/// Sums gradients over the ranks of `replicas`: afterwards each rank's own part holds the sum in
/// rank order, and the rest of its gradients is zero. A gradient can be sent as soon as it is
/// complete, while backward goes on for others. All ranks make the same calls in the same order.
/// Threads: one.
class GradientReduction {
 public:
  explicit GradientReduction(Transport& replicas) : replicas_(replicas) {}

  /// Sums those begun before, then sends the gradients of a bucket; they must not change until
  /// finish(). Where the transport copies, the parts that come take (d-1)/d of the bucket's bytes
  /// until the next call. REQUIRES: none of them was begun before.
  void begin(std::vector<Parameter*> bucket);

  /// Sums what was begun and then, one after the other, the rest of `parameters`, all of the
  /// rank's.
  void finish(const std::vector<Parameter*>& parameters);

 private:
  /// The messages of one gradient.
  struct Pending {
    Parameter* parameter;
    std::vector<Transport::Ticket> sends;
    std::vector<Transport::Ticket> receives;  // by rank; of the own one 0
  };

  void post(Parameter* parameter);
  void sum_pending();

  Transport& replicas_;
  std::vector<Pending> pending_;
  std::vector<const Parameter*> begun_;  // since the last finish(); the place is the message's name
};

/// All of it at once: begins nothing early.
void reduce_gradients(const std::vector<Parameter*>& parameters, Transport& replicas);

/// Gives every rank the values of the parts that the others own. All ranks call it together.
void gather_values(const std::vector<Parameter*>& parameters, Transport& replicas);

/// The whole optimizer state of `parameter` on rank 0 of `replicas`; undefined tensors elsewhere.
/// All ranks call it together.
AdamState gather_state(const Parameter& parameter, const AdamState& own, Transport& replicas);

/// A matrix put together from its shards of rows.
struct WholeMatrix {
  Parameter parameter;  // without a gradient
  AdamState state;
};

/// The whole of a matrix of the vocabulary whose rows the ranks of `pipeline` share, on rank 0;
/// undefined tensors elsewhere. `state` is that of all of `rows`. All ranks call it together.
WholeMatrix gather_rows(const Parameter& rows, const AdamState& state, Transport& pipeline);

/// Fills the state that `shard` has of a parameter from an optimizer file with whole tensors.
void load_state_part(const TensorFiles& optimizer, const Parameter& parameter, const Shard& shard,
                     AdamState& own);

}  // namespace sluice
