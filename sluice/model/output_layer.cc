#include "sluice/model/output_layer.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/mm.h>

#include <algorithm>
#include <utility>

#include "sluice/model/accounting.h"
#include "sluice/model/dtype.h"
#include "sluice/model/embedding.h"
#include "sluice/model/kernels.h"
#include "sluice/model/weight_sink.h"

namespace sluice {
namespace {

constexpr const char* kHeadName = "lm_head.weight";
constexpr const char* kEmbeddingName = "model.embed_tokens.weight";

void add(LossSum& sum, const LossSum& tile) {
  sum.cross_entropy += tile.cross_entropy;
  sum.z_loss += tile.z_loss;
  sum.num_targets += tile.num_targets;
}

}  // namespace

OutputLayer::OutputLayer(const WeightMaker& maker) : config_(maker.config) {
  norm_ = maker.make({norm_spec("model.norm.weight", config_.hidden_size)});
  ParameterSpec head =
      matrix_spec(kHeadName, config_.vocab_size, config_.hidden_size, config_.initializer_range);
  if (config_.tie_word_embeddings) head.tied_to = kEmbeddingName;
  head_ = maker.make({std::move(head)});
}

at::Tensor OutputLayer::norm(const at::Tensor& x_RD, at::Tensor& reciprocal_R) const {
  reciprocal_R = at::empty({x_RD.size(0)}, x_RD.options().dtype(statistics_of(x_RD.scalar_type())));
  at::Tensor normed_RD = at::empty_like(x_RD);
  rms_norm_forward(x_RD, norm_.value, config_.rms_norm_eps, normed_RD, reciprocal_R);
  return normed_RD;
}

void OutputLayer::logits_of(const at::Tensor& normed_RD, at::Tensor& logits_RV) const {
  if (logits_RV.scalar_type() == normed_RD.scalar_type()) {
    at::mm_out(logits_RV, normed_RD, head_.value.t());
  } else if (normed_RD.is_cuda()) {
    logits_RV.copy_(at::mm(normed_RD, head_.value.t(), logits_RV.scalar_type()));
  } else {
    logits_RV.copy_(at::mm(normed_RD, head_.value.t()));
  }
}

at::Tensor OutputLayer::backward(const at::Tensor& x_RD, const at::Tensor& targets_R,
                                 const LossOptions& options, LossSum& loss) {
  check_ids("target", targets_R, config_.vocab_size, options.ignore_index);
  at::Tensor reciprocal_R;
  at::Tensor normed_RD = norm(x_RD, reciprocal_R);  // becomes its own gradient, tile by tile
  const std::int64_t rows = x_RD.size(0), tile_rows = loss_tile_rows(config_, rows);
  at::Tensor buffer_RV = at::empty({tile_rows, config_.vocab_size}, reciprocal_R.options());
  for (std::int64_t first = 0; first < rows; first += tile_rows) {
    const std::int64_t size = std::min(tile_rows, rows - first);
    at::Tensor tile_RD = normed_RD.narrow(0, first, size);
    at::Tensor logits_RV = buffer_RV.narrow(0, 0, size);
    logits_of(tile_RD, logits_RV);
    add(loss, cross_entropy_tile(logits_RV, targets_R.narrow(0, first, size), options,
                                 /*overwrite=*/true));
    const at::Tensor dlogits_RV = logits_RV.to(x_RD.scalar_type());
    add_weight_gradient(head_.gradient, dlogits_RV, tile_RD);
    at::mm_out(tile_RD, dlogits_RV, head_.value);
  }
  buffer_RV.reset();
  at::Tensor dx_RD = at::empty_like(x_RD);
  rms_norm_backward(x_RD, norm_.value, reciprocal_R, /*residual_gradient_RD=*/{}, normed_RD,
                    /*leave_y=*/false, dx_RD, norm_.gradient);
  return dx_RD;
}

void OutputLayer::evaluate(const at::Tensor& x_RD, const at::Tensor& targets_R,
                           const LossOptions& options, LossSum& loss) const {
  check_ids("target", targets_R, config_.vocab_size, options.ignore_index);
  at::Tensor reciprocal_R;
  const at::Tensor normed_RD = norm(x_RD, reciprocal_R);
  const std::int64_t rows = x_RD.size(0), tile_rows = loss_tile_rows(config_, rows);
  const at::Tensor buffer_RV = at::empty({tile_rows, config_.vocab_size}, reciprocal_R.options());
  for (std::int64_t first = 0; first < rows; first += tile_rows) {
    const std::int64_t size = std::min(tile_rows, rows - first);
    at::Tensor logits_RV = buffer_RV.narrow(0, 0, size);
    logits_of(normed_RD.narrow(0, first, size), logits_RV);
    add(loss, cross_entropy_tile(logits_RV, targets_R.narrow(0, first, size), options,
                                 /*overwrite=*/false));
  }
}

at::Tensor OutputLayer::logits(const at::Tensor& x_RD) const {
  at::Tensor reciprocal_R;
  const at::Tensor normed_RD = norm(x_RD, reciprocal_R);
  at::Tensor logits_RV = at::empty({x_RD.size(0), config_.vocab_size}, reciprocal_R.options());
  logits_of(normed_RD, logits_RV);
  return logits_RV;
}

}  // namespace sluice
