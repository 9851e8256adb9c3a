#include "sluice/train/tensor_files.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "sluice/common/errors.h"
#include "sluice/train/checkpoint_state.h"

namespace sluice {
namespace {

/// File name by tensor name. Throws: Failure.
std::map<std::string, std::string> read_index(const std::filesystem::path& path) {
  constexpr std::int64_t kLargest = 100'000'000;
  const std::string text = read_text_file(path, kLargest);
  try {
    const auto index = nlohmann::json::parse(text);
    auto names = index.at("weight_map").get<std::map<std::string, std::string>>();
    for (const auto& [name, file] : names) {
      // A part lies beside its index; anything else could reach any file of the machine.
      if (file.empty() || file.find('/') != std::string::npos || file == "." || file == "..") {
        throw Failure(fmt::format("{}: {} is in \"{}\", which is not a plain file name",
                                  path.string(), printable(name), printable(file)));
      }
    }
    return names;
  } catch (const nlohmann::json::exception&) {
    throw Failure(fmt::format("{} is damaged: it has no weight_map of file names; fetch it again",
                              path.string()));
  }
}

std::string others(std::size_t count) {
  return count > 1 ? fmt::format(" (and {} more)", count - 1) : "";
}

std::string shape_text(std::span<const std::int64_t> shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

bool is_floating(ElementType type) {
  return type == ElementType::kF64 || type == ElementType::kF32 || type == ElementType::kBF16 ||
         type == ElementType::kF16;
}

}  // namespace

void TensorFiles::add_file(const std::filesystem::path& path) {
  const auto file = std::make_shared<const SafetensorsFile>(path);
  for (const TensorEntry& entry : file->header().tensors) {
    if (!tensors_.emplace(entry.name, Place{file, &entry}).second) {
      throw Failure(fmt::format("{}: {} is in two files; fetch the folder again", origin_,
                                printable(entry.name)));
    }
  }
}

TensorFiles TensorFiles::open(const std::filesystem::path& folder, const std::string& stem) {
  TensorFiles result;
  result.origin_ = folder.string();
  const std::filesystem::path single = folder / (stem + ".safetensors");
  const std::filesystem::path index = folder / (stem + ".safetensors.index.json");
  std::error_code error;
  if (std::filesystem::exists(single, error)) {
    result.add_file(single);
    return result;
  }
  if (!std::filesystem::exists(index, error)) {
    throw Failure(fmt::format("{} has neither {} nor {}; name a folder with weights",
                              folder.string(), single.filename().string(),
                              index.filename().string()));
  }
  const auto names = read_index(index);
  std::set<std::string> parts;
  for (const auto& [name, file] : names) parts.insert(file);
  for (const std::string& part : parts) result.add_file(folder / part);
  for (const auto& [name, file] : names) {
    const auto place = result.tensors_.find(name);
    if (place == result.tensors_.end() || place->second.file->path().filename() != file) {
      throw Failure(fmt::format("{}: {} is not in {}, where the index says it is; fetch it again",
                                folder.string(), printable(name), printable(file)));
    }
  }
  return result;
}

std::vector<std::string> TensorFiles::names() const {
  std::vector<std::string> result;
  for (const auto& [name, place] : tensors_) result.push_back(name);
  return result;
}

TensorView TensorFiles::at(std::string_view name) const {
  const auto found = tensors_.find(name);
  if (found == tensors_.end()) {
    throw Failure(fmt::format("{} has no tensor {}", origin_, printable(name)));
  }
  const auto& [file, entry] = found->second;
  return {entry->name, entry->type, entry->shape, file->bytes(*entry)};
}

void require_exactly(const TensorFiles& files, const std::vector<WeightShape>& expected) {
  std::set<std::string> left;
  for (const std::string& name : files.names()) left.insert(name);
  std::vector<std::string> missing;
  for (const WeightShape& weight : expected) {
    if (left.erase(weight.name) == 0) {
      missing.push_back(weight.name);
      continue;
    }
    const auto shape = files.at(weight.name).shape;
    if (!std::equal(shape.begin(), shape.end(), weight.shape.begin(), weight.shape.end())) {
      throw Failure(
          fmt::format("{}: {} has shape {}, the model needs {}; the sizes under [model] "
                      "must be those the file was made with",
                      files.origin(), weight.name, shape_text(shape), shape_text(weight.shape)));
    }
  }
  if (!missing.empty()) {
    throw Failure(
        fmt::format("{}: {}{} is missing; the sizes under [model] must be those the file "
                    "was made with",
                    files.origin(), missing.front(), others(missing.size())));
  }
  if (!left.empty()) {
    throw Failure(
        fmt::format("{}: {}{} does not belong to the model; the sizes under [model] must "
                    "be those the file was made with",
                    files.origin(), printable(*left.begin()), others(left.size())));
  }
}

TensorFiles open_weights(const std::filesystem::path& folder, const ModelConfig& config) {
  verify_checkpoint_files(folder);
  const TensorFiles files = TensorFiles::open(folder, "model");
  std::vector<WeightShape> expected = weight_shapes(config);
  for (const std::string& name : files.names()) {
    // Old files carry the rotary tables, which are computed here.
    if (name.ends_with(".rotary_emb.inv_freq")) {
      const auto shape = files.at(name).shape;
      expected.push_back({name, {shape.begin(), shape.end()}});
    } else if (!is_floating(files.at(name).type)) {
      throw Failure(fmt::format("{}: {} is {}, weights must be F64, F32, BF16 or F16",
                                files.origin(), printable(name), to_string(files.at(name).type)));
    }
  }
  const bool extra_head = config.tie_word_embeddings && files.contains(kHeadName);
  if (extra_head) expected.push_back({kHeadName, {config.vocab_size, config.hidden_size}});
  require_exactly(files, expected);
  if (extra_head) {
    const TensorView head = files.at(kHeadName), embedding = files.at(kEmbeddingName);
    if (head.type != embedding.type ||
        !std::equal(head.bytes.begin(), head.bytes.end(), embedding.bytes.begin(),
                    embedding.bytes.end())) {
      throw Failure(
          fmt::format("{}: tie_word_embeddings is true, but {} differs from {}; set it to "
                      "false in config.json to keep both",
                      files.origin(), kHeadName, kEmbeddingName));
    }
  }
  return files;
}

}  // namespace sluice
