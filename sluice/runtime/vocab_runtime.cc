#include "sluice/runtime/vocab_runtime.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/zeros.h>

#include <utility>

#include "sluice/common/errors.h"
#include "sluice/model/dtype.h"
#include "sluice/runtime/allocator.h"
#include "sluice/runtime/engine.h"
#include "sluice/runtime/tensor_buffer.h"

namespace sluice {

/// One microbatch and slice on this rank.
struct VocabRuntime::Unit {
  std::int64_t batch = 0, length = 0;  // B, T
  at::Tensor tokens_R, targets_N;
  at::Tensor valid_N;  // rows that have a target; undefined: all
  at::Tensor weights_N;

  // Made here and not yet posted.
  at::Tensor embedded_OD, hidden_ND, statistics_KN, gradient_MD, embedding_gradient_RD;
  Collectives::Operation embedding, hidden, statistics, gradient, embedding_gradient;

  LogitsSaved saved;  // from S until T
  bool has_loss = false;
  TokenLoss loss;  // from the first pass that needs it until the last
  int num_loss_users = 0;
};

namespace {

std::vector<at::Tensor> tensors_in(const std::vector<Buffer>& buffers) {
  std::vector<at::Tensor> tensors;
  for (const Buffer& buffer : buffers) tensors.push_back(tensor_in(buffer));
  return tensors;
}

at::Tensor slice_of(const at::Tensor& ids_BT, int slice, int num_slices) {
  const std::int64_t length = ids_BT.size(1) / num_slices;
  return ids_BT.narrow(1, slice * length, length).contiguous().view(-1);
}

std::int64_t count_in(const at::Tensor& ids, const VocabRows& rows) {
  return ((ids >= rows.first) & (ids < rows.first + rows.count)).sum().item<std::int64_t>();
}

}  // namespace

VocabRuntime::VocabRuntime(const Program& program, const VocabSetup& setup, Transport& transport,
                           MemoryLedger& ledger)
    : program_(program),
      setup_(setup),
      transport_(transport),
      ledger_(ledger),
      keep_([this](const at::Tensor& tensor) { charge(tensor); }),
      collectives_(transport),
      units_(static_cast<std::size_t>(program.num_microbatches) *
             static_cast<std::size_t>(program.num_slices)) {
  SLUICE_CHECK(setup.layers != nullptr, "the program shards the vocabulary, the engine has none");
}

VocabRuntime::~VocabRuntime() = default;

VocabRuntime::Unit& VocabRuntime::unit(const Pass& pass) {
  return units_[static_cast<std::size_t>(pass.microbatch * program_.num_slices + pass.slice)];
}

bool VocabRuntime::is_last_rank() const {
  return program_.placement.rank_of(program_.num_stages() - 1) == transport_.rank();
}

void VocabRuntime::charge(const at::Tensor& tensor) const {
  charge_to(tensor, &ledger_, MemoryClass::kVocabulary);
}

// From here until it is taken the tensor belongs to the transport.
Buffer VocabRuntime::hand_over(at::Tensor tensor) const {
  charge_to(tensor, nullptr, MemoryClass::kVocabulary);
  return buffer_of(std::move(tensor));
}

void VocabRuntime::begin_step(const StepBatch& batch) {
  const LedgerScope scope(nullptr, MemoryClass::kWorkspace);
  options_ = batch.loss;
  for (int microbatch = 0; microbatch < program_.num_microbatches; ++microbatch) {
    const auto at = static_cast<std::size_t>(microbatch);
    for (int slice = 0; slice < program_.num_slices; ++slice) {
      Unit& mine = unit({.microbatch = microbatch, .slice = slice});
      mine = Unit{};
      const at::Tensor& tokens_BT = batch.tokens_BT.at(at);
      mine.batch = tokens_BT.size(0);
      mine.length = tokens_BT.size(1) / program_.num_slices;
      mine.tokens_R = slice_of(tokens_BT, slice, program_.num_slices);
      mine.targets_N = slice_of(batch.targets_BT.at(at), slice, program_.num_slices);
      const at::Tensor valid = mine.targets_N != options_.ignore_index;
      // Tokens without a target travel nowhere.
      const bool all_valid = valid.all().item<bool>();
      if (!all_valid) {
        mine.valid_N = valid.nonzero().view(-1);
        mine.targets_N = mine.targets_N.index_select(0, mine.valid_N);
      }
      if (!batch.weights_BT.empty()) {
        const auto type = statistics_type(setup_.layers->config().dtype);
        at::Tensor weights_R = batch.weights_BT.at(at).to(type);
        weights_R = slice_of(weights_R, slice, program_.num_slices);
        mine.weights_N = all_valid ? weights_R : weights_R.index_select(0, mine.valid_N);
      }
      const bool trains = !program_.forward_only;
      mine.num_loss_users = (trains ? 1 : 0) + (is_last_rank() && trains ? 1 : 0);
    }
  }
}

void VocabRuntime::run_pass(const Pass& pass) {
  Unit& mine = unit(pass);
  switch (pass.kind) {
    case PassKind::kEmbedForward:
      mine.embedded_OD = setup_.layers->embedding().forward(mine.tokens_R);
      return charge(mine.embedded_OD);
    case PassKind::kEmbedBackward: {
      const std::vector<Buffer> dx = collectives_.wait(mine.embedding_gradient);
      return setup_.layers->embedding().backward(mine.tokens_R, tensor_in(dx.front()));
    }
    case PassKind::kVocabForward: {
      // A copy of its own: what came is shared by all ranks of a process.
      at::Tensor x_ND = tensor_in(collectives_.wait(mine.hidden).front()).clone();
      const bool trains = !program_.forward_only;
      const bool now = trains && program_.vocab == VocabForm::kParallel2;
      mine.statistics_KN = setup_.layers->output().forward(
          std::move(x_ND), mine.targets_N, options_, setup_.keep_probabilities && trains,
          trains ? &mine.saved : nullptr, now ? &mine.gradient_MD : nullptr, keep_);
      charge(mine.statistics_KN);
      return charge(mine.gradient_MD);
    }
    case PassKind::kVocabBackward: {
      const bool parts = program_.vocab == VocabForm::kParallel1;
      setup_.layers->output().backward(loss_of(mine), mine.targets_N, options_, mine.saved,
                                       parts ? &mine.gradient_MD : nullptr);
      if (parts) charge(mine.gradient_MD);
      return drop_loss(mine);
    }
    default:
      throw InternalError(fmt::format("{} is no vocabulary pass", to_string(pass, true)));
  }
}

void VocabRuntime::post(const Action& action) {
  Unit& mine = unit(action.pass);
  const CollectiveTag tag{static_cast<std::int32_t>(action.collective), action.pass.microbatch,
                          action.pass.slice};
  const bool is_root = action.peer == transport_.rank();
  switch (action.collective) {
    case Collective::kReduceEmbedding:
      mine.embedding =
          collectives_.post_gather(action.peer, tag, hand_over(std::exchange(mine.embedded_OD, {})),
                                   is_root ? embedding_destinations(mine) : std::vector<Buffer>{});
      return;
    case Collective::kBroadcastHidden:
      mine.hidden = collectives_.post_broadcast(
          action.peer, tag,
          is_root ? hand_over(std::exchange(mine.hidden_ND, {}))
                  : destination(mine.targets_N.size(0), value_type(setup_.layers->config().dtype)));
      return;
    case Collective::kGatherStatistics:
      mine.statistics = collectives_.post_gather(
          -1, tag, hand_over(std::exchange(mine.statistics_KN, {})), statistics_destinations(mine));
      return;
    case Collective::kReduceHiddenGradient:
      mine.gradient =
          collectives_.post_gather(action.peer, tag, hand_over(std::exchange(mine.gradient_MD, {})),
                                   is_root ? gradient_destinations(mine) : std::vector<Buffer>{});
      return;
    case Collective::kBroadcastEmbeddingGradient:
      mine.embedding_gradient = collectives_.post_broadcast(
          action.peer, tag,
          is_root ? hand_over(std::exchange(mine.embedding_gradient_RD, {}))
                  : destination(mine.tokens_R.size(0), value_type(setup_.layers->config().dtype)));
      return;
    default:
      throw InternalError(fmt::format("the engine cannot run \"{}\"", to_string(action, true)));
  }
}

at::Tensor VocabRuntime::take_embedding(const Pass& forward) {
  Unit& mine = unit(forward);
  const ModelConfig& config = setup_.layers->config();
  const std::vector<Buffer> parts = collectives_.wait(mine.embedding);
  at::Tensor x_RD = join_embedding(mine.tokens_R, config.vocab_size, tensors_in(parts),
                                   config.hidden_size, value_type(config.dtype));
  return x_RD.view({mine.batch, mine.length, -1});
}

void VocabRuntime::give_hidden(const Pass& forward, at::Tensor y_BTD) {
  Unit& mine = unit(forward);
  const at::Tensor y_RD = y_BTD.view({mine.batch * mine.length, -1});
  mine.hidden_ND = mine.valid_N.defined() ? y_RD.index_select(0, mine.valid_N) : y_RD;
  charge_to(mine.hidden_ND, &ledger_, MemoryClass::kBoundary);
}

const TokenLoss& VocabRuntime::loss_of(Unit& mine) {
  if (!mine.has_loss) {
    const std::vector<Buffer> parts = collectives_.wait(mine.statistics);
    mine.loss = combine_statistics(tensors_in(parts), mine.weights_N,
                                   setup_.layers->config().vocab_size, options_);
    mine.has_loss = true;
    for (const at::Tensor& tensor : {mine.loss.lse_N, mine.loss.softmax_factor_N,
                                     mine.loss.label_factor_N, mine.loss.target_factor_N}) {
      charge(tensor);
    }
    for (const at::Tensor& tensor : mine.loss.shard_factor_N) charge(tensor);
  }
  return mine.loss;
}

void VocabRuntime::drop_loss(Unit& mine) {
  if (--mine.num_loss_users == 0) mine.loss = {};
}

at::Tensor VocabRuntime::take_hidden_gradient(const Pass& backward, LossSum& loss) {
  Unit& mine = unit(backward);
  const ModelConfig& config = setup_.layers->config();
  const std::vector<at::Tensor> parts = tensors_in(collectives_.wait(mine.gradient));
  const TokenLoss& tokens = loss_of(mine);
  loss = tokens.sum;
  at::Tensor dx_ND;
  if (program_.vocab == VocabForm::kParallel2) {
    dx_ND = join_hidden_gradient(tokens, mine.targets_N, config.vocab_size, options_, parts);
  } else {
    dx_ND = parts.front().clone();
    for (std::size_t rank = 1; rank < parts.size(); ++rank) dx_ND.add_(parts[rank]);
  }
  drop_loss(mine);
  dx_ND = dx_ND.to(value_type(config.dtype));
  const std::int64_t num_rows = mine.batch * mine.length;
  if (mine.valid_N.defined()) {
    at::Tensor dx_RD = at::zeros({num_rows, config.hidden_size}, dx_ND.options());
    dx_RD.index_copy_(0, mine.valid_N, dx_ND);
    dx_ND = std::move(dx_RD);
  }
  return dx_ND.view({mine.batch, mine.length, -1});
}

void VocabRuntime::give_embedding_gradient(const Pass& backward, at::Tensor dx_BTD) {
  Unit& mine = unit(backward);
  mine.embedding_gradient_RD = dx_BTD.view({mine.batch * mine.length, -1});
  charge_to(mine.embedding_gradient_RD, &ledger_, MemoryClass::kBoundary);
}

void VocabRuntime::finish(std::vector<LossSum>& losses) {
  for (std::size_t i = 0; i < units_.size(); ++i) {
    Unit& mine = units_[i];
    if (!mine.statistics.is_posted()) continue;
    losses[i] = loss_of(mine).sum;
    mine.loss = {};
  }
  collectives_.flush();
}

bool VocabRuntime::is_clean() const {
  for (const Unit& mine : units_) {
    if (mine.embedded_OD.defined() || mine.hidden_ND.defined() || mine.statistics_KN.defined() ||
        mine.gradient_MD.defined() || mine.embedding_gradient_RD.defined() ||
        mine.saved.x_ND.defined() || mine.loss.lse_N.defined()) {
      return false;
    }
  }
  return true;
}

// --- where a transport that copies puts what comes; it belongs to the transport until it is taken

Buffer VocabRuntime::destination(std::int64_t rows, at::ScalarType type) const {
  if (!transport_.copies()) return {};
  const LedgerScope scope(nullptr, MemoryClass::kWorkspace);
  const at::TensorOptions options = units_.front().tokens_R.options().dtype(type);
  return hand_over(at::empty({rows, setup_.layers->config().hidden_size}, options));
}

std::vector<Buffer> VocabRuntime::embedding_destinations(const Unit& mine) const {
  std::vector<Buffer> buffers;
  if (!transport_.copies()) return buffers;
  const ModelConfig& config = setup_.layers->config();
  for (int rank = 0; rank < transport_.size(); ++rank) {
    const VocabRows rows = vocab_rows(config.vocab_size, transport_.size(), rank);
    buffers.push_back(destination(count_in(mine.tokens_R, rows), value_type(config.dtype)));
  }
  return buffers;
}

std::vector<Buffer> VocabRuntime::statistics_destinations(const Unit& mine) const {
  std::vector<Buffer> buffers;
  if (!transport_.copies()) return buffers;
  const LedgerScope scope(nullptr, MemoryClass::kWorkspace);
  const auto options =
      mine.tokens_R.options().dtype(statistics_type(setup_.layers->config().dtype));
  for (int rank = 0; rank < transport_.size(); ++rank) {
    buffers.push_back(
        hand_over(at::empty({num_statistics(options_), mine.targets_N.size(0)}, options)));
  }
  return buffers;
}

std::vector<Buffer> VocabRuntime::gradient_destinations(const Unit& mine) const {
  std::vector<Buffer> buffers;
  if (!transport_.copies()) return buffers;
  const ModelConfig& config = setup_.layers->config();
  for (int rank = 0; rank < transport_.size(); ++rank) {
    const VocabRows rows = vocab_rows(config.vocab_size, transport_.size(), rank);
    const std::int64_t num_targets = mine.targets_N.size(0);
    const std::int64_t num_rows =
        program_.vocab == VocabForm::kParallel2
            ? hidden_gradient_rows(num_targets, count_in(mine.targets_N, rows), options_)
            : num_targets;
    buffers.push_back(destination(num_rows, statistics_type(config.dtype)));
  }
  return buffers;
}

}  // namespace sluice
