// generate.h - continues tokens with a trained model. Read next: checkpoint.h.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>

#include "sluice/model/config.h"
#include "sluice/model/stage.h"

namespace sluice {

struct GenerateOptions {
  std::int64_t num_tokens = 200;
  double temperature = 0.8;  // 0: always the likeliest token
  std::int64_t top_k = 0;    // draw from the k likeliest; 0: from all
  std::uint64_t seed = 1;
};

/// A model loaded for inference, whole, on the calling thread.
class Generator {
 public:
  /// `folder` is a run folder (its newest complete checkpoint is taken), a checkpoint, or a Hugging
  /// Face folder of a supported model.
  /// Throws: InvalidArgument when it is none of them, Failure when it is damaged.
  explicit Generator(const std::filesystem::path& folder);
  ~Generator();

  const ModelConfig& config() const { return config_; }
  /// The folder the weights came from.
  const std::filesystem::path& source() const { return source_; }

  /// Calls `emit` with every new token. Only the last tokens that fit the training context are
  /// looked at. The same options and prompt give the same tokens.
  /// REQUIRES: prompt not empty. Throws: InvalidArgument for a token beyond the vocabulary.
  void generate(std::span<const std::int64_t> prompt, const GenerateOptions& options,
                const std::function<void(std::int64_t)>& emit);

 private:
  ModelConfig config_;
  std::filesystem::path source_;
  std::int64_t context_length_ = 1024;
  std::unique_ptr<Stage> stage_;
};

}  // namespace sluice
