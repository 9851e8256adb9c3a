#include "sluice/model/embedding.h"

#include <ATen/ops/index_select.h>

#include "sluice/common/errors.h"
#include "sluice/model/kernels.h"

namespace sluice {

Embedding::Embedding(const WeightMaker& maker)
    : weight_(maker.make({matrix_spec("model.embed_tokens.weight", maker.config.vocab_size,
                                      maker.config.hidden_size, maker.config.initializer_range)})) {
}

at::Tensor Embedding::forward(const at::Tensor& tokens_R) const {
  check_ids("token", tokens_R, weight_.value.size(0), 0);
  return at::index_select(weight_.value, 0, tokens_R);
}

void Embedding::backward(const at::Tensor& tokens_R, const at::Tensor& dx_RD) {
  embedding_backward(tokens_R, dx_RD, weight_.gradient);
}

void check_ids(const char* what, const at::Tensor& ids_R, std::int64_t vocab_size,
               std::int64_t allowed) {
  if (!ids_R.is_cpu()) return;
  const std::int64_t* ids = ids_R.const_data_ptr<std::int64_t>();
  for (std::int64_t i = 0; i < ids_R.numel(); ++i) {
    if ((ids[i] < 0 || ids[i] >= vocab_size) && ids[i] != allowed) {
      throw InvalidArgument(fmt::format(
          "{} {} is outside the vocabulary: model.vocab_size is {}, so ids run from 0 to {}", what,
          ids[i], vocab_size, vocab_size - 1));
    }
  }
}

}  // namespace sluice
