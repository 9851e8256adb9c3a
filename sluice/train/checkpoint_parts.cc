#include "sluice/train/checkpoint_parts.h"

#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "sluice/comm/agree.h"
#include "sluice/common/errors.h"
#include "sluice/train/hash64.h"
#include "sluice/train/hf_config.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

/// A rank's part of one set of tensors, as it tells rank 0.
json write_part(const fs::path& folder, const std::string& stem, int rank, int size,
                std::vector<NamedBytes> tensors) {
  json part = {{"names", json::array()}, {"tensor_bytes", 0}};
  if (tensors.empty()) return part;
  std::int64_t tensor_bytes = 0;
  for (const NamedBytes& tensor : tensors) {
    part["names"].push_back(tensor.name);
    tensor_bytes += static_cast<std::int64_t>(tensor.bytes.size());
  }
  const std::string name = fmt::format("{}-{:05}-of-{:05}.safetensors", stem, rank + 1, size);
  FileWriter file(folder / name);
  write_safetensors(file, std::move(tensors));
  file.close();
  part["file"] = name;
  part["num_bytes"] = file.num_bytes();
  part["xxh64"] = hash_text(file.checksum());
  part["tensor_bytes"] = tensor_bytes;
  return part;
}

/// Adds the parts of all ranks and their index to the checkpoint. Throws: InternalError unless they
/// hold exactly the tensors of `expected`.
void join_parts(CheckpointWriter& writer, const std::string& stem, const std::vector<json>& ranks,
                const std::vector<WeightShape>& expected) {
  std::int64_t total = 0;
  json places = json::object();
  for (const json& rank : ranks) {
    const json& part = rank.at(stem);
    if (part.at("names").empty()) continue;
    const std::string file = part.at("file");
    writer.add_record(file, {part.at("num_bytes"), part.at("xxh64")});
    total += part.at("tensor_bytes").get<std::int64_t>();
    for (const std::string name : part.at("names")) {
      SLUICE_CHECK(!places.contains(name), "{} is on two ranks", name);
      places[name] = file;
    }
  }
  for (const WeightShape& weight : expected) {
    SLUICE_CHECK(places.contains(weight.name), "no rank has {}", weight.name);
  }
  SLUICE_CHECK(places.size() == expected.size(), "{} tensors for the {} of the model",
               places.size(), expected.size());
  const json index = {{"metadata", {{"total_size", total}}}, {"weight_map", places}};
  writer.add_text(stem + ".safetensors.index.json", index.dump(2) + "\n");
}

}  // namespace

CheckpointParts::CheckpointParts(fs::path folder, CheckpointContents contents, std::int64_t keep,
                                 Transport& world)
    : folder_(std::move(folder)),
      contents_(std::move(contents)),
      keep_(keep),
      rank_(world.rank()),
      num_ranks_(world.size()) {
  try {
    if (rank_ == 0) writer_.emplace(folder_, contents_.state.step);
  } catch (const Failure& failure) {
    throw not_saved(contents_.state.step, failure);
  }
  world.barrier();  // the folder is there
}

void CheckpointParts::write() {
  const fs::path temporary = folder_ / fmt::format("step-{}.tmp", contents_.state.step);
  try {
    const json mine = {{"model", write_part(temporary, "model", rank_, num_ranks_,
                                            std::exchange(contents_.weights, {}))},
                       {"optimizer", write_part(temporary, "optimizer", rank_, num_ranks_,
                                                std::exchange(contents_.optimizer, {}))}};
    written_ = mine.dump();
  } catch (const Failure& failure) {
    throw not_saved(contents_.state.step, failure);
  }
}

fs::path CheckpointParts::finish(Transport& world) {
  SLUICE_CHECK(!written_.empty(), "rank {} has not written its part", rank_);
  const CheckpointState& state = contents_.state;
  const auto texts = gather_texts(world, written_);
  fs::path path = folder_ / fmt::format("step-{}", state.step);
  try {
    if (rank_ == 0) {
      std::vector<json> ranks;
      for (const std::string& text : texts) ranks.push_back(json::parse(text));
      join_parts(*writer_, "model", ranks, weight_shapes(state.model));
      join_parts(*writer_, "optimizer", ranks, optimizer_shapes(state.model));
      path = finish_checkpoint(*writer_, state, contents_.config_toml, keep_);
    }
  } catch (const Failure& failure) {
    throw not_saved(state.step, failure);
  }
  world.barrier();  // nobody goes on before it is whole
  return path;
}

}  // namespace sluice
