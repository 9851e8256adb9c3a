#include "sluice/model/vocab_shard.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/full.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/outer.h>
#include <ATen/ops/tanh.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "sluice/common/errors.h"
#include "sluice/model/dtype.h"
#include "sluice/model/embedding.h"
#include "sluice/model/kernels.h"
#include "sluice/model/weight_sink.h"

namespace sluice {
namespace {

ParameterSpec shard_spec(const char* name, const ModelConfig& config, const VocabRows& rows) {
  ParameterSpec spec = matrix_spec(name, rows.count, config.hidden_size, config.initializer_range);
  spec.first_row = rows.first;
  spec.full_rows = config.vocab_size;
  return spec;
}

// Positions of the ids that are rows of the shard, ascending.
at::Tensor positions_in(const at::Tensor& ids, const VocabRows& rows) {
  return ((ids >= rows.first) & (ids < rows.first + rows.count)).nonzero().view(-1);
}

// What products for logits take: a CPU rounds a product of bf16 to bf16, and a logit of 20 is then
// wrong by 0.06.
at::Tensor for_logits(const at::Tensor& x_ND) {
  return x_ND.is_cuda() ? x_ND : x_ND.to(statistics_of(x_ND.scalar_type()));
}

// out_ND += p_NW weight_WD, p in the model's type, out in the statistics type.
void add_product(at::Tensor& out_ND, const at::Tensor& p_NW, const at::Tensor& weight_WD) {
  if (out_ND.scalar_type() == p_NW.scalar_type()) {
    at::addmm_out(out_ND, out_ND, p_NW, weight_WD);
  } else {
    out_ND.add_(at::mm(p_NW, weight_WD));
  }
}

// The first elements of a buffer that all tiles share.
at::Tensor tile_in(const at::Tensor& buffer, std::int64_t num_rows, std::int64_t columns) {
  return buffer.narrow(0, 0, num_rows * columns).view({num_rows, columns});
}

// The labels that are columns of a tile: their rows, and their places in the flattened tile.
struct LabelsInTile {
  at::Tensor rows, places;
};

LabelsInTile labels_in(const at::Tensor& targets_N, std::int64_t first, std::int64_t count) {
  LabelsInTile labels{positions_in(targets_N, {first, count}), {}};
  labels.places = targets_N.index_select(0, labels.rows) - first + labels.rows * count;
  return labels;
}

}  // namespace

std::int64_t vocab_tile_columns(std::int64_t rows) {
  constexpr std::int64_t kMost = 2048, kStep = 16;
  if (rows == 0) return 0;
  const std::int64_t num_tiles = (rows + kMost - 1) / kMost;
  const std::int64_t even = (rows + num_tiles - 1) / num_tiles;
  return std::min(rows, (even + kStep - 1) / kStep * kStep);
}

// --- embedding ---

EmbeddingShard::EmbeddingShard(const WeightMaker& maker, VocabRows rows)
    : vocab_size_(maker.config.vocab_size),
      rows_(rows),
      weight_(maker.make({shard_spec("model.embed_tokens.weight", maker.config, rows)})) {}

at::Tensor EmbeddingShard::forward(const at::Tensor& tokens_R) const {
  check_ids("token", tokens_R, vocab_size_, 0);
  const at::Tensor own = tokens_R.index_select(0, positions_in(tokens_R, rows_)) - rows_.first;
  return at::index_select(weight_.value, 0, own);
}

void EmbeddingShard::backward(const at::Tensor& tokens_R, const at::Tensor& dx_RD) {
  const at::Tensor positions = positions_in(tokens_R, rows_);
  const at::Tensor own = tokens_R.index_select(0, positions) - rows_.first;
  embedding_backward(own, dx_RD.index_select(0, positions), weight_.gradient);
}

at::Tensor join_embedding(const at::Tensor& tokens_R, std::int64_t vocab_size,
                          const std::vector<at::Tensor>& parts_OD, std::int64_t hidden_size,
                          at::ScalarType type) {
  at::Tensor x_RD = at::empty({tokens_R.size(0), hidden_size}, tokens_R.options().dtype(type));
  const int num_ranks = static_cast<int>(parts_OD.size());
  for (int rank = 0; rank < num_ranks; ++rank) {
    x_RD.index_copy_(0, positions_in(tokens_R, vocab_rows(vocab_size, num_ranks, rank)),
                     parts_OD[static_cast<std::size_t>(rank)]);
  }
  return x_RD;
}

// --- output layer ---

OutputShard::OutputShard(const WeightMaker& maker, VocabRows rows)
    : config_(maker.config), rows_(rows) {
  ParameterSpec spec = shard_spec("lm_head.weight", maker.config, rows);
  if (config_.tie_word_embeddings) spec.tied_to = "model.embed_tokens.weight";
  head_ = maker.make({std::move(spec)});
}

void OutputShard::logits_of(const at::Tensor& x_ND, std::int64_t first,
                            at::Tensor& logits_NW) const {
  const at::Tensor weight_DW = head_.value.narrow(0, first, logits_NW.size(1)).t();
  if (x_ND.is_cuda() && x_ND.scalar_type() != logits_NW.scalar_type()) {
    logits_NW.copy_(at::mm(x_ND, weight_DW, logits_NW.scalar_type()));
  } else {
    at::mm_out(logits_NW, x_ND, weight_DW.to(logits_NW.scalar_type()));
  }
}

at::Tensor OutputShard::forward(at::Tensor x_ND, const at::Tensor& targets_N,
                                const LossOptions& options, bool keep_probabilities,
                                LogitsSaved* saved, at::Tensor* gradient_MD,
                                const KeepTensor& keep) const {
  check_ids("target", targets_N, config_.vocab_size, options.ignore_index);
  const std::int64_t num_rows = x_ND.size(0), hidden = config_.hidden_size;
  const double softcap = options.logit_softcap;
  const auto statistics = x_ND.options().dtype(statistics_of(x_ND.scalar_type()));
  at::Tensor statistics_KN = at::zeros({num_statistics(options), num_rows}, statistics);
  at::Tensor maximum_N = statistics_KN.select(0, kMaximumRow);
  at::Tensor sum_N = statistics_KN.select(0, kSumRow);
  at::Tensor label_N = statistics_KN.select(0, kLabelRow);
  maximum_N.fill_(-std::numeric_limits<double>::infinity());

  const at::Tensor owned = positions_in(targets_N, rows_);
  at::Tensor products_ND;
  if (gradient_MD != nullptr) {
    *gradient_MD =
        at::empty({hidden_gradient_rows(num_rows, owned.size(0), options), hidden}, statistics);
    products_ND = gradient_MD->narrow(0, 0, num_rows).zero_();
    gradient_MD->narrow(0, num_rows, owned.size(0))
        .copy_(head_.value.index_select(0, targets_N.index_select(0, owned) - rows_.first));
    if (options.label_smoothing > 0.0) {
      gradient_MD->narrow(0, num_rows + owned.size(0), 1)
          .copy_(head_.value.sum(0, /*keepdim=*/true, statistics.dtype().toScalarType()));
    }
  }

  const std::int64_t step = vocab_tile_columns(rows_.count);
  const at::Tensor x_logits_ND = for_logits(x_ND);
  const bool in_type = statistics.dtype() == x_ND.dtype();
  const bool keeps_tiles = saved != nullptr && keep_probabilities && in_type;
  at::Tensor buffer;  // of all tiles; those that are kept have storage of their own
  if (!keeps_tiles) buffer = at::empty({num_rows * step}, statistics);
  for (std::int64_t first = 0; first < rows_.count && num_rows > 0; first += step) {
    const std::int64_t count = std::min(step, rows_.count - first);
    at::Tensor logits_NW =
        keeps_tiles ? at::empty({num_rows, count}, statistics) : tile_in(buffer, num_rows, count);
    logits_of(x_logits_ND, first, logits_NW);
    if (softcap > 0.0) logits_NW.div_(softcap).tanh_().mul_(softcap);
    const LabelsInTile labels = labels_in(targets_N, rows_.first + first, count);
    label_N.index_copy_(0, labels.rows, logits_NW.view(-1).index_select(0, labels.places));
    if (options.label_smoothing > 0.0) {
      statistics_KN.select(0, kLogitsRow).add_(logits_NW.sum(-1));
    }
    at::Tensor slopes_NW;  // of the soft cap
    if (softcap > 0.0) slopes_NW = 1.0 - (logits_NW / softcap).square();
    softmax_tile(logits_NW, maximum_N, sum_N, products_ND);
    if (saved == nullptr) continue;
    logits_NW.view(-1).index_fill_(0, labels.places, 0.0);
    if (slopes_NW.defined()) logits_NW.mul_(slopes_NW);
    at::Tensor p_NW = logits_NW.to(x_ND.scalar_type());
    if (products_ND.defined()) {
      add_product(products_ND, p_NW, head_.value.narrow(0, first, count));
    }
    if (!keep_probabilities) continue;
    keep(p_NW);
    at::Tensor at_tile_N = maximum_N.clone();
    keep(at_tile_N);
    saved->probabilities_NW.push_back(std::move(p_NW));
    saved->maxima_N.push_back(std::move(at_tile_N));
  }
  if (saved != nullptr) {
    keep(x_ND);
    saved->x_ND = std::move(x_ND);
  }
  return statistics_KN;
}

void OutputShard::backward(const TokenLoss& loss, const at::Tensor& targets_N,
                           const LossOptions& options, LogitsSaved& saved, at::Tensor* dx_ND) {
  const at::Tensor x_ND = std::move(saved.x_ND);
  SLUICE_CHECK(x_ND.defined(), "T has no S before it");
  const std::int64_t num_rows = x_ND.size(0);
  const auto statistics = x_ND.options().dtype(loss.lse_N.scalar_type());
  const double softcap = options.logit_softcap;
  const bool kept = !saved.probabilities_NW.empty();
  if (dx_ND != nullptr) *dx_ND = at::zeros({num_rows, config_.hidden_size}, statistics);

  const auto scale_into = [&](at::Tensor& scaled_ND, const at::Tensor& factor_N) {
    if (factor_N.scalar_type() != x_ND.scalar_type()) {
      scaled_ND = (x_ND * factor_N.unsqueeze(-1)).to(x_ND.scalar_type());
      return;
    }
    if (!scaled_ND.defined()) scaled_ND = at::empty_like(x_ND);
    at::mul_out(scaled_ND, x_ND, factor_N.unsqueeze(-1));
  };
  const std::int64_t step = vocab_tile_columns(rows_.count);
  at::Tensor buffer, maximum_N, ignored_N, x_scaled_ND, x_logits_ND, nothing;
  if (!kept && num_rows > 0) {
    buffer = at::empty({num_rows * step}, statistics);
    maximum_N = loss.lse_N.clone();
    ignored_N = at::zeros({num_rows}, statistics);
    scale_into(x_scaled_ND, loss.softmax_factor_N);
    x_logits_ND = for_logits(x_ND);
  }
  std::size_t tile = 0;
  for (std::int64_t first = 0; first < rows_.count && num_rows > 0; first += step, ++tile) {
    const std::int64_t count = std::min(step, rows_.count - first);
    const at::Tensor weight_WD = head_.value.narrow(0, first, count);
    at::Tensor gradient_WD = head_.gradient.narrow(0, first, count);
    at::Tensor p_NW, factor_N = loss.softmax_factor_N;
    if (kept) {
      p_NW = std::move(saved.probabilities_NW[tile]);
      factor_N = factor_N * at::exp(saved.maxima_N[tile] - loss.lse_N);
      scale_into(x_scaled_ND, factor_N);
    } else {
      at::Tensor logits_NW = tile_in(buffer, num_rows, count);
      logits_of(x_logits_ND, first, logits_NW);
      at::Tensor slopes_NW;
      if (softcap > 0.0) {
        logits_NW.div_(softcap).tanh_();
        slopes_NW = 1.0 - logits_NW.square();
        logits_NW.mul_(softcap);
      }
      // No logit is above the logarithm of the sum: the running maximum stays there.
      softmax_tile(logits_NW, maximum_N, ignored_N, nothing);
      const LabelsInTile labels = labels_in(targets_N, rows_.first + first, count);
      logits_NW.view(-1).index_fill_(0, labels.places, 0.0);
      if (slopes_NW.defined()) logits_NW.mul_(slopes_NW);
      p_NW = logits_NW.to(x_ND.scalar_type());
    }
    add_weight_gradient(gradient_WD, p_NW, x_scaled_ND);
    if (dx_ND == nullptr) continue;
    if (kept) {
      at::Tensor part_ND = at::zeros({num_rows, config_.hidden_size}, statistics);
      add_product(part_ND, p_NW, weight_WD);
      dx_ND->addcmul_(part_ND, factor_N.unsqueeze(-1));
    } else {
      add_product(*dx_ND, p_NW, weight_WD);
    }
  }
  if (dx_ND != nullptr && !kept) dx_ND->mul_(loss.softmax_factor_N.unsqueeze(-1));
  saved.probabilities_NW.clear();
  saved.maxima_N.clear();

  const at::Tensor owned = positions_in(targets_N, rows_);
  const at::Tensor own = targets_N.index_select(0, owned) - rows_.first;
  const at::Tensor factor_O1 = loss.label_factor_N.index_select(0, owned).unsqueeze(-1);
  embedding_backward(own, (x_ND.index_select(0, owned) * factor_O1).to(x_ND.scalar_type()),
                     head_.gradient);
  if (dx_ND != nullptr) {
    dx_ND->index_add_(0, owned, head_.value.index_select(0, own) * factor_O1);
  }
  if (options.label_smoothing > 0.0) {
    const double share = options.label_smoothing / static_cast<double>(config_.vocab_size);
    head_.gradient.sub_(share * (x_ND * loss.target_factor_N.unsqueeze(-1)).sum(0));
    if (dx_ND != nullptr) {
      const at::Tensor all_D = head_.value.sum(0, false, statistics.dtype().toScalarType());
      dx_ND->sub_(at::outer(loss.target_factor_N, all_D * share));
    }
  }
}

at::Tensor join_hidden_gradient(const TokenLoss& loss, const at::Tensor& targets_N,
                                std::int64_t vocab_size, const LossOptions& options,
                                const std::vector<at::Tensor>& parts_MD) {
  const std::int64_t num_rows = targets_N.size(0);
  const int num_ranks = static_cast<int>(parts_MD.size());
  at::Tensor dx_ND = at::zeros({num_rows, parts_MD.front().size(1)}, parts_MD.front().options());
  for (std::size_t rank = 0; rank < parts_MD.size(); ++rank) {
    dx_ND.addcmul_(parts_MD[rank].narrow(0, 0, num_rows), loss.shard_factor_N[rank].unsqueeze(-1));
  }
  for (int rank = 0; rank < num_ranks; ++rank) {
    const at::Tensor& part_MD = parts_MD[static_cast<std::size_t>(rank)];
    const at::Tensor owned = positions_in(targets_N, vocab_rows(vocab_size, num_ranks, rank));
    dx_ND.index_add_(0, owned,
                     part_MD.narrow(0, num_rows, owned.size(0)) *
                         loss.label_factor_N.index_select(0, owned).unsqueeze(-1));
  }
  if (options.label_smoothing > 0.0) {
    const double share = options.label_smoothing / static_cast<double>(vocab_size);
    for (const at::Tensor& part_MD : parts_MD) {
      dx_ND.sub_(at::outer(loss.target_factor_N, part_MD[part_MD.size(0) - 1] * share));
    }
  }
  return dx_ND;
}

}  // namespace sluice
