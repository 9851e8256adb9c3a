#include "sluice/model/vocab_layers.h"

namespace sluice {

VocabLayers::VocabLayers(const ModelConfig& config, int num_ranks, int rank, at::Device device,
                         std::uint64_t seed)
    : config_(config),
      maker_{config_, device, seed, parameters_},
      embedding_(maker_, vocab_rows(config.vocab_size, num_ranks, rank)),
      output_(maker_, vocab_rows(config.vocab_size, num_ranks, rank)) {}

}  // namespace sluice
