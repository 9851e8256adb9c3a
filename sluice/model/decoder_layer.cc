#include "sluice/model/decoder_layer.h"

#include <fmt/format.h>

#include <utility>
#include <vector>

#include "sluice/common/errors.h"

namespace sluice {
namespace {

std::string prefix_of(int index) { return fmt::format("model.layers.{}.", index); }

void pack(std::vector<at::Tensor>& tensors, AttentionSaved attention, MlpSaved mlp) {
  for (at::Tensor* tensor :
       {&attention.x_RD, &attention.reciprocal_R, &attention.normed_RD, &attention.q_BTHS,
        &attention.k_BKTS, &attention.v_BKTS, &attention.out_BTHS, &attention.lse_BHT, &mlp.x_RD,
        &mlp.reciprocal_R, &mlp.normed_RD, &mlp.gate_up_R2I, &mlp.activation_RI}) {
    if (tensor->defined()) tensors.push_back(std::move(*tensor));
  }
}

void unpack(std::vector<at::Tensor>& tensors, bool all, bool own_key_values,
            AttentionSaved& attention, MlpSaved& mlp) {
  auto next = tensors.begin();
  const auto take = [&](at::Tensor& tensor, bool present = true) {
    if (!present) return;
    SLUICE_CHECK(next != tensors.end(), "{} saved tensors are too few", tensors.size());
    tensor = std::move(*next++);
  };
  take(attention.x_RD);
  take(attention.reciprocal_R);
  take(attention.normed_RD, all);
  take(attention.q_BTHS);
  take(attention.k_BKTS, own_key_values);
  take(attention.v_BKTS, own_key_values);
  take(attention.out_BTHS);
  take(attention.lse_BHT);
  take(mlp.x_RD);
  take(mlp.reciprocal_R);
  take(mlp.normed_RD, all);
  take(mlp.gate_up_R2I);
  take(mlp.activation_RI, all);
  SLUICE_CHECK(next == tensors.end(), "{} saved tensors are too many", tensors.size());
  tensors.clear();
}

void ignore(const at::Tensor&) {}

}  // namespace

DecoderLayer::DecoderLayer(const WeightMaker& maker, int index)
    : recompute_(maker.config.recompute),
      attention_(maker, prefix_of(index)),
      mlp_(maker, prefix_of(index)) {}

at::Tensor DecoderLayer::forward(const at::Tensor& x_RD, const AttentionSlice& slice,
                                 SavedTensors& saved, const KeepTensor& keep) const {
  keep(x_RD);
  if (recompute_ == Recompute::kFull) {
    saved.tensors.push_back(x_RD);
    return evaluate(x_RD, slice);
  }
  AttentionSaved attention;
  MlpSaved mlp;
  const at::Tensor middle_RD = attention_.forward(x_RD, slice, attention, keep);
  keep(middle_RD);
  at::Tensor y_RD = mlp_.forward(middle_RD, mlp, keep);
  pack(saved.tensors, std::move(attention), std::move(mlp));
  return y_RD;
}

at::Tensor DecoderLayer::evaluate(const at::Tensor& x_RD, const AttentionSlice& slice) const {
  at::Tensor middle_RD;
  {
    AttentionSaved dropped;
    middle_RD = attention_.forward(x_RD, slice, dropped, ignore);
  }
  MlpSaved dropped;
  return mlp_.forward(middle_RD, dropped, ignore);
}

at::Tensor DecoderLayer::run_backward(at::Tensor dy_RD, const AttentionSlice& slice,
                                      SavedTensors& saved, WeightSink& sink) {
  AttentionSaved attention;
  MlpSaved mlp;
  if (recompute_ == Recompute::kFull) {
    SLUICE_CHECK(saved.tensors.size() == 1);
    const at::Tensor x_RD = std::move(saved.tensors.front());
    saved.tensors.clear();
    at::Tensor middle_RD = attention_.recompute(x_RD, slice, attention, ignore);
    mlp_.recompute(middle_RD, mlp, ignore);
    // Two of the rebuilt tensors live on as operands of weight products.
    sink.keep(attention.out_BTHS);
    sink.keep(mlp.gate_up_R2I);
  } else {
    unpack(saved.tensors, recompute_ == Recompute::kNone, slice.shared == nullptr, attention, mlp);
  }
  attention_.begin_backward(slice, attention);
  at::Tensor dmiddle_RD = mlp_.backward(std::move(dy_RD), std::move(mlp), sink);
  return attention_.backward(std::move(dmiddle_RD), slice, std::move(attention), sink);
}

at::Tensor DecoderLayer::backward_input(at::Tensor dy_RD, const AttentionSlice& slice,
                                        SavedTensors& saved, const KeepTensor& keep) {
  SavedTensors pairs;
  WeightSink sink(pairs, keep);
  at::Tensor dx_RD = run_backward(std::move(dy_RD), slice, saved, sink);
  saved = std::move(pairs);
  return dx_RD;
}

void DecoderLayer::backward_weight(SavedTensors& saved) {
  SLUICE_CHECK(saved.tensors.size() == 2 * (MlpBlock::kNumPairs + AttentionBlock::kNumPairs),
               "{} saved tensors", saved.tensors.size());
  mlp_.backward_weight(saved.tensors.data());
  attention_.backward_weight(saved.tensors.data() + 2 * MlpBlock::kNumPairs);
  saved.tensors.clear();
}

at::Tensor DecoderLayer::backward(at::Tensor dy_RD, const AttentionSlice& slice,
                                  SavedTensors& saved) {
  WeightSink sink;
  return run_backward(std::move(dy_RD), slice, saved, sink);
}

}  // namespace sluice
