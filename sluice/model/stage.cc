#include "sluice/model/stage.h"

#include <ATen/ops/empty.h>

#include <optional>
#include <utility>

#include "sluice/common/errors.h"
#include "sluice/model/decoder_layer.h"
#include "sluice/model/dtype.h"
#include "sluice/model/embedding.h"
#include "sluice/model/final_norm.h"
#include "sluice/model/output_layer.h"
#include "sluice/model/rotary.h"

namespace sluice {
namespace {

// A saved copy of its own: the caller's tokens and targets are often views of a whole batch.
at::Tensor copy_ids(const at::Tensor& ids_BT) {
  return ids_BT.clone(at::MemoryFormat::Contiguous).view(-1);
}

}  // namespace

struct Stage::Impl {
  ModelConfig config;
  StageLayers place;
  at::Device device;
  RotaryTable rotary;
  std::vector<Parameter> parameters;
  std::optional<Embedding> embedding;
  std::vector<DecoderLayer> layers;
  std::optional<OutputLayer> head;
  std::optional<FinalNorm> final_norm;  // where the output layer is sharded

  Impl(const ModelConfig& model, const StageLayers& where, at::Device on, std::uint64_t seed)
      : config(model), place(where), device(on), rotary(model, on) {
    const WeightMaker maker{config, device, seed, parameters};
    if (place.has_embedding) embedding.emplace(maker);
    layers.reserve(static_cast<std::size_t>(place.num_layers));
    for (int layer = 0; layer < place.num_layers; ++layer) {
      layers.emplace_back(maker, place.first_layer + layer);
    }
    if (place.has_head) head.emplace(maker);
    if (place.has_final_norm) final_norm.emplace(maker);
  }

  SliceShape shape_of(const StageInput& input) const {
    const at::Tensor& tensor = place.has_embedding ? input.tokens_BT : input.x_BTD;
    SLUICE_CHECK(tensor.defined(), "a stage {} the embedding was given no input",
                 place.has_embedding ? "with" : "without");
    return {tensor.size(0), tensor.size(1), input.first_position, input.slice};
  }

  AttentionSlice slice_of(const SliceShape& shape, KeyValueContext& context, std::size_t layer) {
    AttentionSlice slice{shape, rotary.up_to(shape.first_position + shape.tokens), context};
    if (context.num_slices > 1) {
      const auto slices = static_cast<std::size_t>(context.num_slices);
      if (context.layers.size() < layers.size()) context.layers.resize(layers.size());
      slice.shared = &context.layers[layer];
      slice.layer = static_cast<int>(layer);
      slice.exchange = context.exchange;
      for (auto* list :
           {&slice.shared->k, &slice.shared->v, &slice.shared->dk, &slice.shared->dv}) {
        if (list->size() < slices) list->resize(slices);
      }
      slice.shared->num_added.resize(slices, 0);
    }
    return slice;
  }

  at::Tensor evaluate_layers(const StageInput& input, const SliceShape& shape,
                             KeyValueContext& context) {
    at::Tensor x_RD = place.has_embedding
                          ? embedding->forward(input.tokens_BT.contiguous().view(-1))
                          : input.x_BTD.view({shape.rows(), -1});
    for (std::size_t layer = 0; layer < layers.size(); ++layer) {
      x_RD = layers[layer].evaluate(x_RD, slice_of(shape, context, layer));
    }
    return x_RD;
  }

  // The gradient that enters the last decoder layer.
  at::Tensor gradient_of_layers(const at::Tensor& dy_BTD, const LossOptions& loss_options,
                                StageSaved& saved, LossSum* loss) {
    if (final_norm) return final_norm->backward(dy_BTD.view({saved.shape.rows(), -1}), saved.head);
    if (!head) return dy_BTD.view({saved.shape.rows(), -1});
    SLUICE_CHECK(saved.head.tensors.size() == 2);
    const at::Tensor x_RD = std::move(saved.head.tensors[0]);
    const at::Tensor targets_R = std::move(saved.head.tensors[1]);
    saved.head.tensors.clear();
    LossSum sum;
    at::Tensor dx_RD = head->backward(x_RD, targets_R, loss_options, sum);
    if (loss != nullptr) *loss = sum;
    return dx_RD;
  }

  // What leaves the first decoder layer: to the embedding, or to the stage before.
  at::Tensor finish(at::Tensor dx_RD, StageSaved& saved) {
    if (!embedding) return dx_RD.view({saved.shape.batch, saved.shape.tokens, -1});
    SLUICE_CHECK(saved.embedding.tensors.size() == 1);
    embedding->backward(saved.embedding.tensors.front(), dx_RD);
    saved.embedding.tensors.clear();
    return {};
  }
};

Stage::Stage(const ModelConfig& config, const StageLayers& layers, at::Device device,
             std::uint64_t seed)
    : impl_(std::make_unique<Impl>(config, layers, device, seed)) {}
Stage::~Stage() = default;
Stage::Stage(Stage&&) noexcept = default;
Stage& Stage::operator=(Stage&&) noexcept = default;

const StageLayers& Stage::layers() const { return impl_->place; }
std::vector<Parameter>& Stage::parameters() { return impl_->parameters; }
const std::vector<Parameter>& Stage::parameters() const { return impl_->parameters; }

at::Tensor Stage::boundary_room(std::int64_t sequences, std::int64_t tokens) const {
  return at::empty(
      {sequences, tokens, impl_->config.hidden_size},
      at::TensorOptions().dtype(value_type(impl_->config.dtype)).device(impl_->device));
}

at::Tensor Stage::forward(const StageInput& input, KeyValueContext& context, StageSaved& saved,
                          const KeepTensor& keep) {
  const SliceShape shape = impl_->shape_of(input);
  saved = {};
  saved.shape = shape;
  at::Tensor x_RD;
  if (impl_->embedding) {
    at::Tensor tokens_R = copy_ids(input.tokens_BT);
    keep(tokens_R);
    x_RD = impl_->embedding->forward(tokens_R);
    saved.embedding.tensors.push_back(std::move(tokens_R));
  } else {
    x_RD = input.x_BTD.view({shape.rows(), -1});
  }
  saved.layers.resize(impl_->layers.size());
  for (std::size_t layer = 0; layer < impl_->layers.size(); ++layer) {
    x_RD = impl_->layers[layer].forward(x_RD, impl_->slice_of(shape, context, layer),
                                        saved.layers[layer], keep);
  }
  if (impl_->final_norm) {
    x_RD = impl_->final_norm->forward(std::move(x_RD), saved.head, keep);
  }
  if (!impl_->head) return x_RD.view({shape.batch, shape.tokens, -1});
  SLUICE_CHECK(input.targets_BT.defined(), "the stage with the output layer was given no targets");
  keep(x_RD);
  at::Tensor targets_R = copy_ids(input.targets_BT);
  keep(targets_R);
  saved.head.tensors = {std::move(x_RD), std::move(targets_R)};
  return {};
}

at::Tensor Stage::backward_input(const at::Tensor& dy_BTD, const LossOptions& loss_options,
                                 KeyValueContext& context, StageSaved& saved,
                                 const KeepTensor& keep, LossSum* loss) {
  at::Tensor gradient_RD = impl_->gradient_of_layers(dy_BTD, loss_options, saved, loss);
  for (std::size_t layer = impl_->layers.size(); layer-- > 0;) {
    gradient_RD = impl_->layers[layer].backward_input(std::move(gradient_RD),
                                                      impl_->slice_of(saved.shape, context, layer),
                                                      saved.layers[layer], keep);
  }
  return impl_->finish(std::move(gradient_RD), saved);
}

void Stage::backward_weight(StageSaved& saved) {
  for (std::size_t layer = impl_->layers.size(); layer-- > 0;) {
    impl_->layers[layer].backward_weight(saved.layers[layer]);
  }
  saved = {};
}

at::Tensor Stage::backward(const at::Tensor& dy_BTD, const LossOptions& loss_options,
                           KeyValueContext& context, StageSaved& saved, const KeepTensor& keep,
                           LossSum* loss) {
  static_cast<void>(keep);  // nothing becomes saved
  at::Tensor gradient_RD = impl_->gradient_of_layers(dy_BTD, loss_options, saved, loss);
  for (std::size_t layer = impl_->layers.size(); layer-- > 0;) {
    gradient_RD = impl_->layers[layer].backward(
        std::move(gradient_RD), impl_->slice_of(saved.shape, context, layer), saved.layers[layer]);
  }
  at::Tensor dx_BTD = impl_->finish(std::move(gradient_RD), saved);
  saved = {};
  return dx_BTD;
}

at::Tensor Stage::evaluate(const StageInput& input, KeyValueContext& context,
                           const LossOptions& loss_options, LossSum* loss) {
  const SliceShape shape = impl_->shape_of(input);
  at::Tensor x_RD = impl_->evaluate_layers(input, shape, context);
  if (impl_->final_norm) x_RD = impl_->final_norm->evaluate(x_RD);
  if (!impl_->head) return x_RD.view({shape.batch, shape.tokens, -1});
  if (input.targets_BT.defined() && loss != nullptr) {
    *loss = {};
    impl_->head->evaluate(x_RD, input.targets_BT.contiguous().view(-1), loss_options, *loss);
  }
  return {};
}

at::Tensor Stage::last_logits(const StageInput& input, KeyValueContext& context) {
  SLUICE_CHECK(impl_->head.has_value(), "only the stage with the output layer has logits");
  const SliceShape shape = impl_->shape_of(input);
  const at::Tensor x_RD = impl_->evaluate_layers(input, shape, context);
  const at::Tensor last_BD =
      x_RD.view({shape.batch, shape.tokens, -1}).select(1, shape.tokens - 1).contiguous();
  return impl_->head->logits(last_BD);
}

}  // namespace sluice
