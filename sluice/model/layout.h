// layout.h - which layers each stage holds. Free of torch. Read next: stage.h.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "sluice/model/config.h"

namespace sluice {

/// The contiguous layers of one stage. The first stage also embeds, the last one also has the final
/// norm, the output layer and the loss. A stage may hold no decoder layer.
struct StageLayers {
  int first_layer = 0;
  int num_layers = 0;
  bool has_embedding = false;
  bool has_head = false;
  /// The last stage when the vocabulary is sharded: it ends with the final norm and hands its
  /// output on; has_embedding and has_head are then false everywhere.
  bool has_final_norm = false;

  friend bool operator==(const StageLayers&, const StageLayers&) = default;
};

/// Layers of every stage, in stage order.
using Layout = std::vector<StageLayers>;

/// Parses `pipeline.layers`: "auto", "uniform", a comma list such as "3,3,2", or a Megatron layout
/// string such as "Et*3|(tt|)*2,tL" (letters E, t, L; stage i is what stands before the i-th bar).
/// `rank_of_stage` lets "auto" balance ranks, not stages: it minimises the busiest rank's forward
/// and backward cost from the FLOPs of the layers, the embedding and the output layer, then prefers
/// the most even stages. "uniform" gives the first stages one layer more when layers do not divide.
/// Throws: InvalidArgument naming the value, the rule and what would fit; layers are counted
/// against the config, and letters that are not implemented are refused by name.
/// With `sharded_vocabulary` embedding and output layer are on no stage and weigh nothing.
Layout parse_layout(std::string_view text, const ModelConfig& config,
                    const std::vector<int>& rank_of_stage, std::int64_t sequence_length,
                    bool sharded_vocabulary = false);

}  // namespace sluice
