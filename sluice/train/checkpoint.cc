#include "sluice/train/checkpoint.h"

#include <algorithm>
#include <charconv>
#include <system_error>
#include <utility>

#include "sluice/common/errors.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;

/// A folder of checkpoints: "step-12", or "step-12.old" while it is being replaced.
struct StepFolder {
  std::int64_t step = 0;
  bool old = false;
  fs::path path;
};

/// Step of "step-N" plus `suffix`, or nothing for any other name.
std::optional<std::int64_t> step_of(std::string_view name, std::string_view suffix) {
  constexpr std::string_view kPrefix = "step-";
  if (!name.starts_with(kPrefix) || !name.ends_with(suffix)) return std::nullopt;
  if (name.size() < kPrefix.size() + suffix.size()) return std::nullopt;
  name = name.substr(kPrefix.size(), name.size() - kPrefix.size() - suffix.size());
  std::int64_t step = 0;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), step);
  if (error != std::errc() || end != name.data() + name.size() || step < 0) return std::nullopt;
  return step;
}

/// Newest first, and of one step the finished one before the ".old".
std::vector<StepFolder> list_steps(const fs::path& folder) {
  std::vector<StepFolder> steps;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename().string();
    if (const auto step = step_of(name, "")) steps.push_back({*step, false, entry.path()});
    if (const auto step = step_of(name, ".old")) steps.push_back({*step, true, entry.path()});
  }
  std::sort(steps.begin(), steps.end(), [](const StepFolder& a, const StepFolder& b) {
    return a.step != b.step ? a.step > b.step : a.old < b.old;
  });
  return steps;
}

void rename_folder(const fs::path& from, const fs::path& to) {
  std::error_code error;
  fs::rename(from, to, error);
  if (error) {
    throw Failure(
        fmt::format("cannot rename {} to {}: {}", from.string(), to.string(), error.message()));
  }
}

void remove_quietly(const fs::path& path) {
  std::error_code error;  // what cannot be removed takes space, and harms nothing
  fs::remove_all(path, error);
}

/// Removes a checkpoint so that it is never seen half removed.
void remove_checkpoint(const fs::path& path) {
  const fs::path hidden = path.parent_path() / (path.stem().string() + ".tmp");
  std::error_code error;
  remove_quietly(hidden);
  fs::rename(path, hidden, error);
  if (!error) remove_quietly(hidden);
}

void remove_leftovers(const fs::path& folder) {
  std::error_code error;
  std::vector<fs::path> leftovers;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    if (step_of(entry.path().filename().string(), ".tmp")) leftovers.push_back(entry.path());
  }
  for (const fs::path& path : leftovers) remove_quietly(path);
}

std::vector<WeightShape> shapes_of(const std::vector<NamedBytes>& tensors, ElementType type) {
  std::vector<WeightShape> shapes;
  for (const NamedBytes& tensor : tensors) {
    SLUICE_CHECK(tensor.type == type, "{} is {}", tensor.name, to_string(tensor.type));
    shapes.push_back({tensor.name, tensor.shape});
  }
  return shapes;
}

/// Every tensor exactly once: a tensor that is lost here is lost for good.
void check_complete(std::vector<WeightShape> given, std::vector<WeightShape> expected) {
  const auto by_name = [](const WeightShape& a, const WeightShape& b) { return a.name < b.name; };
  std::sort(given.begin(), given.end(), by_name);
  std::sort(expected.begin(), expected.end(), by_name);
  const auto [left, right] =
      std::mismatch(given.begin(), given.end(), expected.begin(), expected.end());
  SLUICE_CHECK(left == given.end() && right == expected.end(),
               "the checkpoint's tensors are not the model's: got {}, needs {}",
               left == given.end() ? "nothing" : left->name,
               right == expected.end() ? "nothing" : right->name);
}

void require_type(const TensorFiles& files, ElementType type) {
  for (const std::string& name : files.names()) {
    if (files.at(name).type == type) continue;
    throw Failure(fmt::format(
        "{}: {} is {}, must be {}; remove that checkpoint folder to resume "
        "from the one before it",
        files.origin(), printable(name), to_string(files.at(name).type), to_string(type)));
  }
}

/// Why a folder is no complete checkpoint, or nothing.
std::string incomplete_reason(const fs::path& path) {
  try {
    for (const auto& [name, record] : read_state(path).files) {
      std::error_code error;
      const auto num_bytes = fs::file_size(path / name, error);
      if (error || static_cast<std::int64_t>(num_bytes) != record.num_bytes) {
        return fmt::format("{}: {} is missing or truncated", path.string(), printable(name));
      }
    }
  } catch (const Failure& failure) {
    return failure.what();
  }
  return "";
}

}  // namespace

CheckpointWriter::CheckpointWriter(fs::path folder, std::int64_t step)
    : folder_(std::move(folder)),
      temporary_(folder_ / fmt::format("step-{}.tmp", step)),
      step_(step) {
  make_folders(folder_);
  sync_folder(fs::absolute(folder_).parent_path());  // folder_ may be new itself
  remove_leftovers(folder_);
  make_folders(temporary_);
}

CheckpointWriter::~CheckpointWriter() {
  if (!committed_) remove_quietly(temporary_);
}

void CheckpointWriter::record(const std::string& file_name, FileWriter& file) {
  file.close();
  const std::lock_guard lock(mutex_);
  files_[file_name] = {file.num_bytes(), hash_text(file.checksum())};
}

void CheckpointWriter::add_tensors(const std::string& file_name, std::vector<NamedBytes> tensors) {
  FileWriter file(temporary_ / file_name);
  write_safetensors(file, std::move(tensors));
  record(file_name, file);
}

void CheckpointWriter::add_record(const std::string& file_name, const FileRecord& record) {
  const std::lock_guard lock(mutex_);
  files_[file_name] = record;
}

void CheckpointWriter::add_text(const std::string& file_name, std::string_view text) {
  FileWriter file(temporary_ / file_name);
  file.write(text);
  record(file_name, file);
}

fs::path CheckpointWriter::commit(const CheckpointState& state) {
  SLUICE_CHECK(state.step == step_, "state of step {}", state.step);
  {
    FileWriter file(temporary_ / "state.json");
    file.write(state_json(state, files_));
    file.close();
  }
  sync_folder(temporary_);
  const fs::path final_path = folder_ / fmt::format("step-{}", step_);
  const fs::path old_path = folder_ / fmt::format("step-{}.old", step_);
  std::error_code error;
  if (fs::exists(final_path, error)) {
    // Between the two renames the old one is found under its second name.
    remove_quietly(old_path);
    rename_folder(final_path, old_path);
  }
  rename_folder(temporary_, final_path);
  committed_ = true;
  sync_folder(folder_);
  if (fs::exists(old_path, error)) remove_checkpoint(old_path);
  return final_path;
}

std::vector<WeightShape> optimizer_shapes(const ModelConfig& config) {
  std::vector<WeightShape> shapes;
  for (const WeightShape& weight : weight_shapes(config)) {
    shapes.push_back({"exp_avg/" + weight.name, weight.shape});
    shapes.push_back({"exp_avg_sq/" + weight.name, weight.shape});
    if (config.dtype == DType::kBFloat16) {
      shapes.push_back({"master/" + weight.name, weight.shape});
    }
  }
  return shapes;
}

ElementType weight_type(DType dtype) {
  switch (dtype) {
    case DType::kFloat64:
      return ElementType::kF64;
    case DType::kBFloat16:
      return ElementType::kBF16;
    case DType::kFloat32:
      return ElementType::kF32;
  }
  return ElementType::kF32;
}

ElementType optimizer_type(DType dtype) {
  return dtype == DType::kFloat64 ? ElementType::kF64 : ElementType::kF32;
}

fs::path write_checkpoint(const fs::path& folder, const CheckpointContents& contents,
                          std::int64_t keep) {
  const CheckpointState& state = contents.state;
  check_complete(shapes_of(contents.weights, weight_type(state.model.dtype)),
                 weight_shapes(state.model));
  check_complete(shapes_of(contents.optimizer, optimizer_type(state.model.dtype)),
                 optimizer_shapes(state.model));
  try {
    CheckpointWriter writer(folder, state.step);
    writer.add_tensors("model.safetensors", contents.weights);
    writer.add_tensors("optimizer.safetensors", contents.optimizer);
    return finish_checkpoint(writer, state, contents.config_toml, keep);
  } catch (const Failure& failure) {
    throw not_saved(state.step, failure);
  }
}

fs::path finish_checkpoint(CheckpointWriter& writer, const CheckpointState& state,
                           const std::string& config_toml, std::int64_t keep) {
  writer.add_text("config.json", model_config_json(state.model, state.sequence_length));
  writer.add_text("config.toml", config_toml);
  const fs::path path = writer.commit(state);
  std::int64_t kept = 0;
  for (const StepFolder& step : list_steps(path.parent_path())) {
    const bool stays = kept < keep || step.path == path;
    if (stays) ++kept;
    if (keep > 0 && !stays) remove_checkpoint(step.path);
  }
  return path;
}

Failure not_saved(std::int64_t step, const Failure& reason) {
  return Failure(
      fmt::format("the checkpoint of step {} was not saved: {}; earlier checkpoints are "
                  "intact; free space or set run.dir to another disk",
                  step, reason.what()));
}

Checkpoint open_checkpoint(const fs::path& path) {
  std::error_code error;
  if (!fs::exists(path / "state.json", error)) {
    throw Failure(
        fmt::format("{} is not a complete checkpoint: it has no state.json", path.string()));
  }
  verify_checkpoint_files(path);
  Checkpoint checkpoint{
      .path = path, .state = read_state(path).state, .weights = {}, .optimizer = {}};
  const ModelConfig& model = checkpoint.state.model;
  checkpoint.weights = TensorFiles::open(path, "model");
  require_exactly(checkpoint.weights, weight_shapes(model));
  require_type(checkpoint.weights, weight_type(model.dtype));
  checkpoint.optimizer = TensorFiles::open(path, "optimizer");
  require_exactly(checkpoint.optimizer, optimizer_shapes(model));
  require_type(checkpoint.optimizer, optimizer_type(model.dtype));
  return checkpoint;
}

LatestCheckpoint latest_checkpoint(const fs::path& folder) {
  LatestCheckpoint latest;
  for (const StepFolder& step : list_steps(folder)) {
    const std::string reason = incomplete_reason(step.path);
    if (reason.empty()) {
      latest.path = step.path;
      return latest;
    }
    latest.skipped.push_back(reason);
  }
  return latest;
}

}  // namespace sluice
