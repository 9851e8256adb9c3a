// tensor_files.h - tensors by name over one or several safetensors files, with strict checks of
// names and shapes. Free of torch. Read next: checkpoint.h.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "sluice/train/hf_config.h"
#include "sluice/train/safetensors.h"

namespace sluice {

/// A tensor in a mapped file. Valid as long as the TensorFiles it came from.
struct TensorView {
  std::string_view name;
  ElementType type = ElementType::kF32;
  std::span<const std::int64_t> shape;
  std::span<const std::byte> bytes;  // row-major, not aligned
};

/// The tensors of a set of safetensors files. Cheap to copy. Threads: any.
class TensorFiles {
 public:
  TensorFiles() = default;

  /// Opens `folder`/`stem`.safetensors, or all parts that `stem`.safetensors.index.json names.
  /// Throws: Failure when there is neither, a part is missing or damaged, or index and parts
  /// disagree.
  static TensorFiles open(const std::filesystem::path& folder, const std::string& stem);

  /// All names, sorted.
  std::vector<std::string> names() const;
  bool contains(std::string_view name) const { return tensors_.contains(name); }
  /// Throws: Failure when there is no such tensor.
  TensorView at(std::string_view name) const;

  /// Where the tensors are, for errors.
  const std::string& origin() const { return origin_; }

 private:
  struct Place {
    std::shared_ptr<const SafetensorsFile> file;
    const TensorEntry* entry = nullptr;
  };
  void add_file(const std::filesystem::path& path);

  std::string origin_;
  std::map<std::string, Place, std::less<>> tensors_;
};

/// Demands that `files` hold exactly `expected`, each with its shape.
/// Throws: Failure naming the first tensor that is missing, of another shape, or not expected, and
/// how many there are of its kind.
void require_exactly(const TensorFiles& files, const std::vector<WeightShape>& expected);

/// The weights of a model from a Hugging Face folder or a checkpoint: strict names and shapes,
/// floating-point types; checksums too when `folder` is a checkpoint. A tied model's file may carry
/// lm_head.weight if it equals the embedding.
/// Throws: Failure.
TensorFiles open_weights(const std::filesystem::path& folder, const ModelConfig& config);

}  // namespace sluice
