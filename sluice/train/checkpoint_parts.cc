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

fs::path write_checkpoint_together(const fs::path& folder, CheckpointContents contents,
                                   std::int64_t keep, Transport& world) {
  const CheckpointState& state = contents.state;
  try {
    std::optional<CheckpointWriter> writer;
    if (world.rank() == 0) writer.emplace(folder, state.step);
    world.barrier();  // the folder is there
    const fs::path temporary = folder / fmt::format("step-{}.tmp", state.step);
    json mine;
    mine["model"] =
        write_part(temporary, "model", world.rank(), world.size(), std::move(contents.weights));
    mine["optimizer"] = write_part(temporary, "optimizer", world.rank(), world.size(),
                                   std::move(contents.optimizer));
    const auto texts = gather_texts(world, mine.dump());
    fs::path path = folder / fmt::format("step-{}", state.step);
    if (world.rank() == 0) {
      std::vector<json> ranks;
      for (const std::string& text : texts) ranks.push_back(json::parse(text));
      join_parts(*writer, "model", ranks, weight_shapes(state.model));
      join_parts(*writer, "optimizer", ranks, optimizer_shapes(state.model));
      path = finish_checkpoint(*writer, state, contents.config_toml, keep);
    }
    world.barrier();  // nobody goes on before it is whole
    return path;
  } catch (const Failure& failure) {
    throw not_saved(state.step, failure);
  }
}

}  // namespace sluice
