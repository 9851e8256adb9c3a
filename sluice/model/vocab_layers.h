// vocab_layers.h - the vocabulary layers of one rank under Vocabulary Parallelism: its rows of both
// matrices. Read next: vocab_shard.h, runtime/vocab_runtime.h.
#pragma once

#include <cstdint>
#include <vector>

#include "sluice/model/parameter.h"
#include "sluice/model/vocab_shard.h"

namespace sluice {

/// Both shards with their parameters: the embedding's first, then the output layer's. With tied
/// embeddings the second is tied to the first; each keeps a gradient sum of its own until the
/// step's end, so that the order of G and T in a schedule does not change the bits of their sum.
class VocabLayers {
 public:
  /// REQUIRES: config.vocab_size >= num_ranks (checked by the run's config).
  VocabLayers(const ModelConfig& config, int num_ranks, int rank, at::Device device,
              std::uint64_t seed);
  VocabLayers(const VocabLayers&) = delete;
  VocabLayers& operator=(const VocabLayers&) = delete;

  const ModelConfig& config() const { return config_; }
  std::vector<Parameter>& parameters() { return parameters_; }
  EmbeddingShard& embedding() { return embedding_; }
  OutputShard& output() { return output_; }

 private:
  ModelConfig config_;
  std::vector<Parameter> parameters_;
  WeightMaker maker_;
  EmbeddingShard embedding_;
  OutputShard output_;
};

}  // namespace sluice
