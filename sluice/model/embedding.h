// embedding.h - the token embedding of the first stage. Read next: decoder_layer.h.
#pragma once

#include <ATen/core/Tensor.h>

#include "sluice/model/weights.h"

namespace sluice {

/// Rows of model.embed_tokens.weight by token. R = B * T rows, D hidden size.
class Embedding {
 public:
  explicit Embedding(const WeightMaker& maker);

  /// Returns x_RD. Throws: InvalidArgument on a CPU when a token is outside the vocabulary.
  at::Tensor forward(const at::Tensor& tokens_R) const;

  /// Adds the rows of dx to the gradient, in the order of the rows.
  void backward(const at::Tensor& tokens_R, const at::Tensor& dx_RD);

 private:
  Weight weight_;
};

/// Throws: InvalidArgument naming the first of `ids_R` outside 0 .. vocab_size - 1 that is not
/// `allowed`. Only looks at tensors on a CPU, where looking costs no synchronisation.
void check_ids(const char* what, const at::Tensor& ids_R, std::int64_t vocab_size,
               std::int64_t allowed);

}  // namespace sluice
