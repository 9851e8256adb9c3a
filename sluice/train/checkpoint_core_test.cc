#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <functional>
#include <numeric>
#include <thread>

#include "sluice/train/checkpoint.h"
#include "sluice/train/test_files.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;

RunConfig small_config() {
  RunConfig config;
  config.model.vocab_size = 7;
  config.model.hidden_size = 4;
  config.model.intermediate_size = 6;
  config.model.num_hidden_layers = 2;
  config.model.num_attention_heads = 2;
  config.model.num_key_value_heads = 1;
  config.data.paths = {"text"};
  return config;
}

/// Every element of every tensor is `value`.
NamedBytes filled(const WeightShape& weight, float value) {
  const std::int64_t count = std::accumulate(weight.shape.begin(), weight.shape.end(),
                                             std::int64_t{1}, std::multiplies<>());
  const auto owner =
      std::make_shared<const std::vector<float>>(static_cast<std::size_t>(count), value);
  return {.name = weight.name,
          .type = ElementType::kF32,
          .shape = weight.shape,
          .bytes = std::as_bytes(std::span(*owner)),
          .owner = owner};
}

CheckpointContents contents_of(std::int64_t step, const RunConfig& config = small_config()) {
  const auto value = static_cast<float>(step);
  CheckpointContents contents{
      .state = make_state(config, step, step * 16, step * 16 * 256, "0123456789abcdef"),
      .config_toml = to_toml(config),
      .weights = {},
      .optimizer = {}};
  for (const WeightShape& weight : weight_shapes(config.model)) {
    contents.weights.push_back(filled(weight, value));
  }
  for (const WeightShape& moment : optimizer_shapes(config.model)) {
    contents.optimizer.push_back(filled(moment, -value));
  }
  return contents;
}

float first_value(const TensorFiles& files, const std::string& name) {
  return load_at<float>(files.at(name).bytes, 0);
}

/// Names in a folder, sorted.
std::string listing(const fs::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) {
    names.push_back(entry.path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return fmt::format("{}", fmt::join(names, " "));
}

TEST(Checkpoint, ReadsBackWhatItWrote) {
  const TestFolder folder;
  const fs::path path = write_checkpoint(folder.path(), contents_of(5), 0);
  EXPECT_EQ(path, folder.path() / "step-5");
  EXPECT_EQ(listing(path),
            "config.json config.toml model.safetensors optimizer.safetensors state.json");
  const Checkpoint checkpoint = open_checkpoint(path);
  EXPECT_EQ(checkpoint.state, contents_of(5).state);
  EXPECT_EQ(checkpoint.state.next_sample, 80);
  EXPECT_EQ(first_value(checkpoint.weights, "model.norm.weight"), 5.0F);
  EXPECT_EQ(first_value(checkpoint.optimizer, "exp_avg_sq/lm_head.weight"), -5.0F);
  EXPECT_EQ(parse_config(read_whole(path / "config.toml"), "written"), small_config());
  EXPECT_EQ(read_model_config(path), small_config().model);
  EXPECT_EQ(first_value(open_weights(path, small_config().model), "lm_head.weight"), 5.0F);
}

TEST(Checkpoint, IsReplacedWhenTheStepIsWrittenAgain) {
  const TestFolder folder;
  write_checkpoint(folder.path(), contents_of(5), 0);
  CheckpointContents again = contents_of(5);
  again.state.tokens = 1;
  write_checkpoint(folder.path(), again, 0);
  EXPECT_EQ(listing(folder.path()), "step-5");
  EXPECT_EQ(open_checkpoint(folder.path() / "step-5").state.tokens, 1);
}

TEST(Checkpoint, RefusesToLoseATensor) {
  const TestFolder folder;
  CheckpointContents contents = contents_of(1);
  contents.weights.pop_back();
  EXPECT_THROW(write_checkpoint(folder.path(), contents, 0), InternalError);
  contents = contents_of(1);
  contents.optimizer[3].shape = {1};
  EXPECT_THROW(write_checkpoint(folder.path(), contents, 0), InternalError);
  contents = contents_of(1);
  contents.weights.push_back(contents.weights.front());
  EXPECT_THROW(write_checkpoint(folder.path(), contents, 0), InternalError);
  EXPECT_EQ(listing(folder.path()), "");
}

TEST(Checkpoint, KeepsTheNewest) {
  const TestFolder folder;
  for (std::int64_t step = 8; step <= 12; ++step) {
    write_checkpoint(folder.path(), contents_of(step), 2);
  }
  EXPECT_EQ(listing(folder.path()), "step-11 step-12");
  write_checkpoint(folder.path(), contents_of(13), 0);
  EXPECT_EQ(listing(folder.path()), "step-11 step-12 step-13");
}

TEST(Checkpoint, CommitsNothingWithoutTheFinalStep) {
  const TestFolder folder;
  {
    CheckpointWriter writer(folder.path(), 3);
    writer.add_text("config.toml", "text");
    EXPECT_EQ(listing(folder.path()), "step-3.tmp");
  }
  EXPECT_EQ(listing(folder.path()), "");
}

TEST(Checkpoint, LetsThreadsWriteDifferentFiles) {
  const TestFolder folder;
  const CheckpointContents contents = contents_of(4);
  CheckpointWriter writer(folder.path(), 4);
  std::thread other([&] { writer.add_tensors("model.safetensors", contents.weights); });
  writer.add_tensors("optimizer.safetensors", contents.optimizer);
  other.join();
  EXPECT_EQ(open_checkpoint(writer.commit(contents.state)).state, contents.state);
}

TEST(LatestCheckpoint, IsTheNewestCompleteOne) {
  const TestFolder folder;
  EXPECT_FALSE(latest_checkpoint(folder.path() / "none").path.has_value());
  EXPECT_FALSE(latest_checkpoint(folder.path()).path.has_value());
  write_checkpoint(folder.path(), contents_of(9), 0);
  write_checkpoint(folder.path(), contents_of(10), 0);
  fs::create_directories(folder.path() / "step-11.tmp");
  fs::create_directories(folder.path() / "step-x");
  EXPECT_EQ(latest_checkpoint(folder.path()).path, folder.path() / "step-10");
  EXPECT_TRUE(latest_checkpoint(folder.path()).skipped.empty());

  fs::resize_file(folder.path() / "step-10" / "optimizer.safetensors", 100);
  const LatestCheckpoint latest = latest_checkpoint(folder.path());
  EXPECT_EQ(latest.path, folder.path() / "step-9");
  ASSERT_EQ(latest.skipped.size(), 1u);
  EXPECT_CONTAINS(latest.skipped[0], "optimizer.safetensors is missing or truncated");
}

// A crash between the two renames of a replacement leaves the old one under its second name.
TEST(LatestCheckpoint, FindsACheckpointThatWasBeingReplaced) {
  const TestFolder folder;
  write_checkpoint(folder.path(), contents_of(9), 0);
  fs::rename(folder.path() / "step-9", folder.path() / "step-9.old");
  EXPECT_EQ(latest_checkpoint(folder.path()).path, folder.path() / "step-9.old");
  write_checkpoint(folder.path(), contents_of(9), 0);
  EXPECT_EQ(listing(folder.path()), "step-9");
}

TEST(Checkpoint, IsRefusedWhenAnyFileIsMissingTruncatedOrAltered) {
  const char* const files[] = {"config.json", "config.toml", "model.safetensors",
                               "optimizer.safetensors", "state.json"};
  for (const char* name : files) {
    const TestFolder folder;
    const fs::path path = write_checkpoint(folder.path(), contents_of(5), 0);
    const std::string good = read_whole(path / name);
    for (const std::size_t at : {std::size_t{0}, good.size() / 2, good.size() - 2}) {
      std::string altered = good;
      altered[at] = static_cast<char>(altered[at] ^ 1);
      folder.write(fmt::format("step-5/{}", name), altered);
      EXPECT_CONTAINS(message_of<Failure>([&] { open_checkpoint(path); }), name);
    }
    folder.write(fmt::format("step-5/{}", name), good.substr(0, good.size() / 2));
    EXPECT_CONTAINS(message_of<Failure>([&] { open_checkpoint(path); }), "remove that checkpoint");
    fs::remove(path / name);
    EXPECT_CONTAINS(message_of<Failure>([&] { open_checkpoint(path); }), name);
  }
}

TEST(Checkpoint, OpensOnlyWithTheModelsTensors) {
  const TestFolder folder;
  CheckpointContents contents = contents_of(5);
  {
    CheckpointWriter writer(folder.path(), 5);
    contents.weights.pop_back();
    writer.add_tensors("model.safetensors", contents.weights);
    writer.add_tensors("optimizer.safetensors", contents.optimizer);
    writer.commit(contents.state);
  }
  EXPECT_CONTAINS(message_of<Failure>([&] { open_checkpoint(folder.path() / "step-5"); }),
                  "lm_head.weight is missing");
  contents = contents_of(5);
  {
    CheckpointWriter writer(folder.path(), 5);
    contents.weights.push_back(filled({"extra", {1}}, 0.0F));
    writer.add_tensors("model.safetensors", contents.weights);
    writer.add_tensors("optimizer.safetensors", contents.optimizer);
    writer.commit(contents.state);
  }
  EXPECT_CONTAINS(message_of<Failure>([&] { open_checkpoint(folder.path() / "step-5"); }),
                  "extra does not belong");
}

TEST(Resume, DemandsTheSameRun) {
  const RunConfig config = small_config();
  const CheckpointState state = contents_of(5).state;
  const std::string digest = state.data_digest;
  EXPECT_TRUE(check_resume(state, config, digest).empty());

  const auto refusal = [&](auto change) {
    RunConfig other = config;
    change(other);
    return message_of<InvalidArgument>([&] { check_resume(state, other, digest); });
  };
  EXPECT_CONTAINS(refusal([](RunConfig& c) { c.model.hidden_size = 8; }),
                  "model.hidden_size = 8: the checkpoint of step 5 was made with 4");
  EXPECT_CONTAINS(refusal([](RunConfig& c) { c.model.dtype = DType::kFloat64; }), "float32");
  EXPECT_CONTAINS(refusal([](RunConfig& c) { c.run.seed = 2; }), "run.seed");
  EXPECT_CONTAINS(refusal([](RunConfig& c) { c.data.sequence_length = 8; }), "sequence_length");
  EXPECT_CONTAINS(message_of<InvalidArgument>([&] { check_resume(state, config, "other"); }),
                  "data.paths");
}

TEST(Resume, AllowsAnotherLayoutAndSaysWhatChanged) {
  RunConfig config = small_config();
  const CheckpointState state = contents_of(5).state;
  config.pipeline.ranks = 1;
  config.pipeline.schedule = "gpipe";
  config.pipeline.microbatches = 1;
  config.train.steps = 2000;
  config.model.recompute = Recompute::kFull;
  EXPECT_EQ(check_resume(state, config, state.data_digest),
            std::vector<std::string>{"train.steps = 2000 (was 1000)"});
}

/// Files of this process cannot grow beyond a size while it lives: a full disk, more or less.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t num_bytes) {
    ::getrlimit(RLIMIT_FSIZE, &before_);
    handler_ = std::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{num_bytes, before_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FileSizeLimit() {
    ::setrlimit(RLIMIT_FSIZE, &before_);
    std::signal(SIGXFSZ, handler_);
  }
  FileSizeLimit(const FileSizeLimit&) = delete;
  FileSizeLimit& operator=(const FileSizeLimit&) = delete;

 private:
  rlimit before_{};
  void (*handler_)(int) = nullptr;
};

TEST(Checkpoint, LeavesThePreviousOneWhenTheDiskIsFull) {
  const TestFolder folder;
  write_checkpoint(folder.path(), contents_of(5), 1);
  for (const rlim_t limit : {rlim_t{0}, rlim_t{100}, rlim_t{3000}}) {
    std::string text;
    {
      const FileSizeLimit full(limit);
      text = message_of<Failure>([&] { write_checkpoint(folder.path(), contents_of(6), 1); });
    }
    EXPECT_CONTAINS(text, "the checkpoint of step 6 was not saved");
    EXPECT_CONTAINS(text, "File too large");
    EXPECT_EQ(listing(folder.path()), "step-5");
  }
  EXPECT_EQ(open_checkpoint(folder.path() / "step-5").state.step, 5);
}

TEST(Checkpoint, SaysWhyAFolderCannotBeMade) {
  const TestFolder folder;
  folder.write("file", "text");
  EXPECT_CONTAINS(
      message_of<Failure>([&] { write_checkpoint(folder.path() / "file/in", contents_of(6), 1); }),
      "Not a directory");
}

// A process that writes checkpoint after checkpoint is killed at any moment: the newest complete
// one must open, and its tensors must be those of its step.
TEST(Checkpoint, SurvivesAKillAtAnyMoment) {
  const TestFolder folder;
  write_checkpoint(folder.path(), contents_of(1), 1);
  for (int round = 0; round < 12; ++round) {
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      // Steps repeat, so that replacing is interrupted too.
      for (std::int64_t step = 1;; ++step) {
        write_checkpoint(folder.path(), contents_of(step % 5 + 1), 1);
      }
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(3 + 7 * round));
    ::kill(child, SIGKILL);
    ::waitpid(child, nullptr, 0);
    const LatestCheckpoint latest = latest_checkpoint(folder.path());
    ASSERT_TRUE(latest.path.has_value()) << listing(folder.path());
    EXPECT_TRUE(latest.skipped.empty()) << latest.skipped.front();
    const Checkpoint checkpoint = open_checkpoint(*latest.path);
    EXPECT_EQ(first_value(checkpoint.weights, "model.norm.weight"),
              static_cast<float>(checkpoint.state.step));
    EXPECT_EQ(first_value(checkpoint.optimizer, "exp_avg/model.norm.weight"),
              -static_cast<float>(checkpoint.state.step));
  }
}

}  // namespace
}  // namespace sluice
