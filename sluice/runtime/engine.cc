#include "sluice/runtime/engine.h"

#include <ATen/ops/narrow.h>

#include <algorithm>
#include <utility>

#include "sluice/common/errors.h"
#include "sluice/runtime/allocator.h"
#include "sluice/runtime/clock.h"
#include "sluice/runtime/device.h"

namespace sluice {

/// Tensors of one (stage, microbatch, slice) on this rank.
struct Engine::Unit {
  at::Tensor input;   // boundary activations, from arrival until F
  at::Tensor output;  // produced by F, until it is sent
  at::Tensor dy;      // boundary gradient, from arrival until B or I
  at::Tensor dx;      // produced by B or I, until it is sent
  StageSaved saved;
};

namespace {

/// Decoder layers of every stage: each rank tells those of its own.
std::vector<int> layers_of_stages(const Program& program, const std::vector<Stage*>& own,
                                  Transport& transport) {
  std::vector<double> mine;
  for (const Stage* stage : own) mine.push_back(stage->layers().num_layers);
  const auto all = transport.all_gather(mine);
  std::vector<int> layers(static_cast<std::size_t>(program.num_stages()));
  for (int stage = 0; stage < program.num_stages(); ++stage) {
    const auto rank = static_cast<std::size_t>(program.placement.rank_of(stage));
    const auto chunk = static_cast<std::size_t>(program.placement.chunk_of(stage));
    layers[static_cast<std::size_t>(stage)] = static_cast<int>(all[rank][chunk]);
  }
  return layers;
}

/// Whether a pass adds to the gradients of its stage's parameters.
bool adds_to_stage_gradients(const Pass& pass) {
  return is_backward(pass.kind) || pass.kind == PassKind::kBackwardWeight;
}

/// Actions after which the gradients of a stage are complete, but for a rank's last pass.
std::map<std::size_t, std::size_t> ends_of_stages(const Program& program, int rank) {
  const auto& actions = program.ranks[static_cast<std::size_t>(rank)].actions;
  std::map<int, std::size_t> last_of_stage;
  std::size_t last = 0;
  for (std::size_t k = 0; k < actions.size(); ++k) {
    if (actions[k].kind != ActionKind::kPass || actions[k].lane != Lane::kCompute) continue;
    last = k;
    const Pass& pass = actions[k].pass;
    if (adds_to_stage_gradients(pass)) last_of_stage[pass.stage] = k;
  }
  std::map<std::size_t, std::size_t> ends;
  for (const auto& [stage, action] : last_of_stage) {
    if (action == last) continue;
    ends[action] = static_cast<std::size_t>(program.placement.chunk_of(stage));
  }
  return ends;
}

}  // namespace

Engine::Engine(const Program& program, std::vector<Stage*> stages, Transport& transport,
               MemoryLedger& ledger, const EngineOffload& offload, const VocabSetup& vocabulary)
    : program_(program),
      rank_(transport.rank()),
      stages_(std::move(stages)),
      transport_(transport),
      ledger_(ledger),
      messages_(program.ranks.at(static_cast<std::size_t>(rank_)), transport),
      keep_([&ledger](const at::Tensor& tensor) {
        charge_to(tensor, &ledger, MemoryClass::kActivations);
      }),
      keep_key_value_([&ledger](const at::Tensor& tensor) {
        charge_to(tensor, &ledger, MemoryClass::kKvCache);
      }),
      keep_gradient_([&ledger](const at::Tensor& tensor) {
        charge_to(tensor, &ledger, MemoryClass::kKvGradient);
      }),
      device_(at::kCPU) {
  const auto& own = program.placement.stages_of(rank_);
  SLUICE_CHECK(transport.size() == program.num_ranks(), "{} ranks for a program of {}",
               transport.size(), program.num_ranks());
  SLUICE_CHECK(own.size() == stages_.size(), "rank {} has {} stages, the program has {}", rank_,
               stages_.size(), own.size());
  const std::size_t num_microbatches = static_cast<std::size_t>(program.num_microbatches);
  units_.resize(own.size() * num_microbatches * static_cast<std::size_t>(program.num_slices));
  contexts_.resize(own.size() * num_microbatches);
  stage_ends_ = ends_of_stages(program, rank_);
  spans_.reserve(program.ranks[static_cast<std::size_t>(rank_)].actions.size());
  if (!program.exchange.empty()) {
    exchanger_ = std::make_unique<Exchanger>(
        program.exchange, layers_of_stages(program, stages_, transport), transport, ledger);
  }
  if (program.vocab != VocabForm::kLast) {
    vocabulary_ = std::make_unique<VocabRuntime>(program, vocabulary, transport, ledger);
  }
  if (!stages_.empty() && !stages_.front()->parameters().empty()) {
    device_ = stages_.front()->parameters().front().value.device();
  }
  const auto& actions = program.ranks[static_cast<std::size_t>(rank_)].actions;
  if (std::any_of(actions.begin(), actions.end(), is_copy_action)) {
    if (offload.store == nullptr) own_store_ = make_growing_store();
    copies_ = std::make_unique<ActivationStore>(
        program, ledger, offload.store == nullptr ? *own_store_ : *offload.store, offload.check);
  }
}

Engine::~Engine() = default;

int Engine::chunk_of(int stage) const {
  SLUICE_CHECK(program_.placement.rank_of(stage) == rank_, "stage {} is not on rank {}", stage,
               rank_);
  return program_.placement.chunk_of(stage);
}

Engine::Unit& Engine::unit(int stage, int microbatch, int slice) {
  const auto index = (static_cast<std::size_t>(chunk_of(stage)) *
                          static_cast<std::size_t>(program_.num_microbatches) +
                      static_cast<std::size_t>(microbatch)) *
                         static_cast<std::size_t>(program_.num_slices) +
                     static_cast<std::size_t>(slice);
  return units_[index];
}

at::Tensor Engine::slice_of(const at::Tensor& tensor_BT, int slice) const {
  if (program_.num_slices == 1) return tensor_BT;
  const std::int64_t length = tensor_BT.size(1) / program_.num_slices;
  return tensor_BT.narrow(1, slice * length, length).contiguous();
}

std::vector<LossSum> Engine::run(const StepBatch& batch, const Optimizer& optimizer,
                                 const StageDone& stage_done) {
  const RankProgram& mine = program_.ranks[static_cast<std::size_t>(rank_)];
  const LedgerScope scope(&ledger_, MemoryClass::kWorkspace);
  spans_.clear();
  next_exchange_ = 0;
  losses_.assign(static_cast<std::size_t>(program_.num_microbatches * program_.num_slices), {});
  for (auto& context : contexts_) {
    context.num_slices = program_.num_slices;
    context.keep_key_value = keep_key_value_;
    context.keep_gradient = keep_gradient_;
  }
  messages_.begin([&] { return boundary_room(batch); });
  const bool has_head = program_.placement.rank_of(program_.num_stages() - 1) == rank_;
  if (vocabulary_) vocabulary_->begin_step(batch);

  for (std::size_t k = 0; k < mine.actions.size(); ++k) {
    const Action& action = mine.actions[k];
    if (action.kind == ActionKind::kReceive) {
      messages_.post_receive(k);
      continue;
    }
    if (is_copy_action(action)) {
      post_copy(k);
      continue;
    }
    for (const std::int32_t dependency : mine.dependencies_of(k)) {
      const auto needed = static_cast<std::size_t>(dependency);
      const Action& earlier = mine.actions[needed];
      if (is_copy_action(earlier)) wait_for_copy(earlier.pass);
      if (earlier.kind != ActionKind::kReceive) continue;  // ran inline before
      receive(earlier, needed);
    }
    const std::int64_t begin = now_ns();
    switch (action.kind) {
      case ActionKind::kPass:
        run_pass(action.pass, batch);
        synchronize(device_);
        break;
      case ActionKind::kSend:
        send(action);
        break;
      case ActionKind::kOptimizer:
        check_step_is_clean();
        optimizer(has_head ? losses_ : std::vector<LossSum>{});
        synchronize(device_);
        break;
      case ActionKind::kReceive:
        break;
      case ActionKind::kCollective:
        vocabulary_->post(action);
        break;
    }
    spans_.push_back(
        {action.kind, action.lane, action.peer, action.pass, begin, now_ns(), action.collective});
    transport_.note_done(to_string(action, program_.num_slices > 1));
    if (stage_done && stage_ends_.contains(k)) stage_done(stage_ends_.at(k));
  }
  messages_.finish();
  if (copies_) {
    const std::vector<Span> copied = copies_->finish_step();
    spans_.insert(spans_.end(), copied.begin(), copied.end());
  }
  SLUICE_CHECK(!exchanger_ || next_exchange_ ==
                                  program_.exchange.ranks[static_cast<std::size_t>(rank_)].size(),
               "rank {} did not run all passes that exchange attention", rank_);
  if (vocabulary_) vocabulary_->finish(losses_);
  return has_head ? std::exchange(losses_, {}) : std::vector<LossSum>{};
}

// The helper thread waits for other copies; the compute pass that a copy depends on has run.
void Engine::post_copy(std::size_t action) {
  const RankProgram& mine = program_.ranks[static_cast<std::size_t>(rank_)];
  const Pass& pass = mine.actions[action].pass;
  if (pass.kind == PassKind::kOffload) {
    return copies_->start_out(pass, unit(pass.stage, pass.microbatch, pass.slice).saved);
  }
  std::vector<Pass> frees;
  for (const std::int32_t dependency : mine.dependencies_of(action)) {
    const Action& needed = mine.actions[static_cast<std::size_t>(dependency)];
    if (is_copy_action(needed)) frees.push_back(needed.pass);
  }
  copies_->start_in(pass, std::move(frees));
}

void Engine::wait_for_copy(const Pass& copy) {
  if (copy.kind == PassKind::kOffload) return copies_->finish_out(copy);
  copies_->finish_in(copy, unit(copy.stage, copy.microbatch, copy.slice).saved);
}

CopyCounters Engine::copies() const { return copies_ ? copies_->counters() : CopyCounters{}; }

AttentionExchange* Engine::exchange_of(const Pass& pass) {
  if (!exchanger_) return nullptr;
  const auto& passes = program_.exchange.ranks[static_cast<std::size_t>(rank_)];
  if (next_exchange_ == passes.size() || passes[next_exchange_].pass != pass) return nullptr;
  exchanger_->begin(passes[next_exchange_++]);
  return exchanger_.get();
}

void Engine::run_exchanging(const Pass& pass, const StepBatch& batch) {
  KeyValueContext& context = contexts_[static_cast<std::size_t>(
      chunk_of(pass.stage) * program_.num_microbatches + pass.microbatch)];
  context.exchange = exchange_of(pass);
  pass.kind == PassKind::kForward ? run_forward(pass, batch) : run_backward(pass, batch);
  if (std::exchange(context.exchange, nullptr) != nullptr) exchanger_->finish();
}

void Engine::run_pass(const Pass& pass, const StepBatch& batch) {
  switch (pass.kind) {
    case PassKind::kForward:
    case PassKind::kBackward:
    case PassKind::kBackwardInput:
      return run_exchanging(pass, batch);
    case PassKind::kBackwardWeight:
      return stages_[static_cast<std::size_t>(chunk_of(pass.stage))]->backward_weight(
          unit(pass.stage, pass.microbatch, pass.slice).saved);
    case PassKind::kEmbedForward:
    case PassKind::kEmbedBackward:
    case PassKind::kVocabForward:
    case PassKind::kVocabBackward:
      SLUICE_CHECK(vocabulary_ != nullptr, "{} without a sharded vocabulary",
                   to_string(pass, true));
      return vocabulary_->run_pass(pass);
    default:
      throw InternalError(fmt::format("the engine cannot run pass {}", to_string(pass, true)));
  }
}

void Engine::run_forward(const Pass& pass, const StepBatch& batch) {
  const int chunk = chunk_of(pass.stage);
  Stage& stage = *stages_[static_cast<std::size_t>(chunk)];
  Unit& mine = unit(pass.stage, pass.microbatch, pass.slice);
  KeyValueContext& context =
      contexts_[static_cast<std::size_t>(chunk * program_.num_microbatches + pass.microbatch)];
  const auto microbatch = static_cast<std::size_t>(pass.microbatch);

  StageInput input;
  input.slice = pass.slice;
  if (stage.layers().has_embedding) {
    input.tokens_BT = slice_of(batch.tokens_BT.at(microbatch), pass.slice);
    input.first_position = pass.slice * input.tokens_BT.size(1);
  } else {
    if (vocabulary_ && pass.stage == 0) {
      mine.input = vocabulary_->take_embedding(pass);
      charge_to(mine.input, &ledger_, MemoryClass::kBoundary);
    }
    input.x_BTD = std::exchange(mine.input, {});
    SLUICE_CHECK(input.x_BTD.defined(), "{} has no input", to_string(pass, true));
    input.first_position = pass.slice * input.x_BTD.size(1);
  }
  if (stage.layers().has_head) {
    input.targets_BT = slice_of(batch.targets_BT.at(microbatch), pass.slice);
  }
  at::Tensor y_BTD;
  if (program_.forward_only) {
    LossSum& loss = losses_[microbatch * static_cast<std::size_t>(program_.num_slices) +
                            static_cast<std::size_t>(pass.slice)];
    y_BTD = stage.evaluate(input, context, batch.loss, stage.layers().has_head ? &loss : nullptr);
    if (pass.slice + 1 == program_.num_slices) context.layers.clear();
  } else {
    y_BTD = stage.forward(input, context, mine.saved, keep_);
  }
  if (!stage.layers().has_head) hand_over(pass, std::move(y_BTD));
}

void Engine::run_backward(const Pass& pass, const StepBatch& batch) {
  const int chunk = chunk_of(pass.stage);
  Stage& stage = *stages_[static_cast<std::size_t>(chunk)];
  Unit& mine = unit(pass.stage, pass.microbatch, pass.slice);
  KeyValueContext& context =
      contexts_[static_cast<std::size_t>(chunk * program_.num_microbatches + pass.microbatch)];

  at::Tensor dy_BTD = std::exchange(mine.dy, {});
  if (vocabulary_ && pass.stage + 1 == program_.num_stages()) {
    dy_BTD = vocabulary_->take_hidden_gradient(
        pass,
        losses_[static_cast<std::size_t>(pass.microbatch * program_.num_slices + pass.slice)]);
    charge_to(dy_BTD, &ledger_, MemoryClass::kBoundary);
  }
  SLUICE_CHECK(dy_BTD.defined() != stage.layers().has_head, "{} {} a gradient from above",
               to_string(pass, true), dy_BTD.defined() ? "must not have" : "lacks");
  LossSum* loss =
      stage.layers().has_head
          ? &losses_[static_cast<std::size_t>(pass.microbatch * program_.num_slices + pass.slice)]
          : nullptr;
  at::Tensor dx_BTD =
      pass.kind == PassKind::kBackward
          ? stage.backward(dy_BTD, batch.loss, context, mine.saved, keep_, loss)
          : stage.backward_input(dy_BTD, batch.loss, context, mine.saved, keep_, loss);
  dy_BTD.reset();
  if (pass.slice == 0) context.layers.clear();
  if (!stage.layers().has_embedding) hand_over(pass, std::move(dx_BTD));
}

void Engine::hand_over(const Pass& producer, at::Tensor tensor) {
  SLUICE_CHECK(tensor.defined(), "{} produced nothing", to_string(producer, true));
  const bool backward = is_backward(producer.kind);
  const int consumer = backward ? producer.stage - 1 : producer.stage + 1;
  if (consumer < 0) return vocabulary_->give_embedding_gradient(producer, std::move(tensor));
  if (consumer == program_.num_stages()) {
    return vocabulary_->give_hidden(producer, std::move(tensor));
  }
  charge_to(tensor, &ledger_, MemoryClass::kBoundary);
  if (program_.placement.rank_of(consumer) == rank_) {
    Unit& next = unit(consumer, producer.microbatch, producer.slice);
    (backward ? next.dy : next.input) = std::move(tensor);
  } else {
    Unit& mine = unit(producer.stage, producer.microbatch, producer.slice);
    (backward ? mine.dx : mine.output) = std::move(tensor);
  }
}

void Engine::send(const Action& action) {
  const Pass& producer = action.pass;
  Unit& mine = unit(producer.stage, producer.microbatch, producer.slice);
  at::Tensor tensor = std::exchange(is_backward(producer.kind) ? mine.dx : mine.output, {});
  SLUICE_CHECK(tensor.defined(), "nothing to send for {}", to_string(producer, true));
  messages_.send(action.peer, tag_of(producer), std::move(tensor));
}

at::Tensor Engine::boundary_room(const StepBatch& batch) const {
  const bool has_tokens = !batch.tokens_BT.empty();
  const std::int64_t sequences = has_tokens ? batch.tokens_BT[0].size(0) : batch.num_sequences;
  const std::int64_t tokens = has_tokens ? batch.tokens_BT[0].size(1) : batch.num_tokens;
  return stages_.front()->boundary_room(sequences, tokens / program_.num_slices);
}

void Engine::receive(const Action& action, std::size_t index) {
  const std::int64_t begin = now_ns();
  at::Tensor tensor = messages_.receive(index);
  const Pass& producer = action.pass;
  const bool backward = is_backward(producer.kind);
  Unit& next =
      unit(backward ? producer.stage - 1 : producer.stage + 1, producer.microbatch, producer.slice);
  charge_to(tensor, &ledger_, MemoryClass::kBoundary);
  (backward ? next.dy : next.input) = std::move(tensor);
  spans_.push_back({action.kind, action.lane, action.peer, action.pass, begin, now_ns()});
}

void Engine::check_step_is_clean() const {
  for (const Unit& held : units_) {
    bool clean = !held.input.defined() && !held.output.defined() && !held.dy.defined() &&
                 !held.dx.defined() && held.saved.embedding.tensors.empty() &&
                 held.saved.head.tensors.empty();
    for (const auto& layer : held.saved.layers) clean = clean && layer.tensors.empty();
    clean = clean && (!vocabulary_ || vocabulary_->is_clean());
    SLUICE_CHECK(clean, "rank {} still holds tensors at the optimizer", rank_);
  }
  for (const KeyValueContext& context : contexts_) {
    SLUICE_CHECK(context.layers.empty(), "rank {} still holds keys and values at the optimizer",
                 rank_);
  }
}

}  // namespace sluice
