// Whole training runs: resume, change of layout, stop on request, predicted against measured
// memory.
#include <ATen/TensorOperators.h>
#include <ATen/ops/abs.h>
#include <ATen/ops/equal.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <csignal>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>

#include "sluice/common/errors.h"
#include "sluice/schedule/offload.h"
#include "sluice/schedule/registry.h"
#include "sluice/train/checkpoint.h"
#include "sluice/train/generate.h"
#include "sluice/train/pipeline_step.h"
#include "sluice/train/trainer.h"
#include "sluice/train/verify_run.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;

/// A folder with a small corpus and room for runs, removed at the end.
class Training : public ::testing::Test {
 protected:
  void SetUp() override {
    root_ =
        fs::temp_directory_path() / fmt::format("sluice_training_{}_{}", getpid(),
                                                ::testing::UnitTest::GetInstance()->random_seed());
    fs::remove_all(root_);
    fs::create_directories(root_ / "corpus");
    for (int file = 0; file < 12; ++file) {
      std::ofstream out(root_ / "corpus" / fmt::format("file{}.txt", file));
      for (int line = 0; line < 40; ++line) {
        out << "line " << line * (file + 3) % 17 << " of the corpus says the same again\n";
      }
    }
  }
  void TearDown() override { fs::remove_all(root_); }

  RunConfig config(const std::string& run, const std::vector<std::string>& overrides = {}) const {
    std::vector<std::string> all = {
        fmt::format("run.dir=\"{}\"", (root_ / run).string()),
        fmt::format("data.paths=[\"{}\"]", (root_ / "corpus").string())};
    all.insert(all.end(), overrides.begin(), overrides.end());
    return parse_config(R"(
[model]
vocab_size = 256
hidden_size = 32
intermediate_size = 48
num_hidden_layers = 8
num_attention_heads = 4
num_key_value_heads = 2
[data]
sequence_length = 16
validation_fraction = 0.2
[pipeline]
schedule = "1f1b"
ranks = 2
microbatches = 4
microbatch_size = 2
[train]
steps = 6
learning_rate = 3e-3
warmup_steps = 2
eval_every = 2
checkpoint_every = 0
[run]
timeout_seconds = 60
)",
                        "test", all);
  }

  fs::path root_;
};

struct RunOutcome {
  NamedTensors weights;
  std::vector<double> losses;
  TrainResult result;
};

/// Runs to the end, or until `stop_after` steps are done.
RunOutcome run(const RunConfig& config, bool resume, std::int64_t stop_after = 1 << 20) {
  Trainer trainer(config, resume);
  RunOutcome outcome;
  std::int64_t steps = 0;
  TrainEvents events;
  events.step = [&](const StepReport& report) {
    outcome.losses.push_back(report.loss);
    outcome.losses.push_back(report.gradient_norm);
    ++steps;
  };
  events.stop = [&] { return steps + 1 >= stop_after; };
  outcome.result = trainer.run(events);
  outcome.weights = copy_weights(trainer.ranks());
  return outcome;
}

void expect_same_weights(const NamedTensors& got, const NamedTensors& wanted) {
  ASSERT_EQ(got.size(), wanted.size());
  for (const auto& [name, tensor] : wanted) {
    ASSERT_TRUE(got.contains(name)) << name;
    EXPECT_TRUE(at::equal(got.at(name), tensor)) << name;
  }
}

TEST_F(Training, LossFallsAndValidationFollows) {
  const RunOutcome outcome = run(config("a", {"train.steps=60"}), false);
  EXPECT_LT(outcome.result.last->loss, 0.6 * outcome.losses.front());
  ASSERT_TRUE(outcome.result.validation_loss.has_value());
  EXPECT_LT(*outcome.result.validation_loss, 0.7 * outcome.losses.front());
}

TEST_F(Training, ResumedRunGivesTheSameBitsAsOneThatWasNeverStopped) {
  const RunOutcome unbroken = run(config("unbroken"), false);
  const RunOutcome first = run(config("broken"), false, 3);
  EXPECT_TRUE(first.result.stopped);
  EXPECT_EQ(first.result.last_step, 3);
  const RunOutcome second = run(config("broken"), true);
  EXPECT_EQ(second.result.last_step, 6);
  expect_same_weights(second.weights, unbroken.weights);
  std::vector<double> losses = first.losses;
  losses.insert(losses.end(), second.losses.begin(), second.losses.end());
  EXPECT_EQ(losses, unbroken.losses);
}

std::string bytes_of(const fs::path& file) {
  std::ifstream in(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

TEST_F(Training, BackgroundCheckpointsAreThoseOfTheirStep) {
  for (const char* vocab : {"last", "parallel-2"}) {
    SCOPED_TRACE(vocab);
    const auto settings = [&](bool background) {
      return std::vector<std::string>{"train.checkpoint_every=3", "train.steps=13",
                                      "run.keep_checkpoints=0",
                                      fmt::format("pipeline.vocab={}", vocab),
                                      fmt::format("run.background_checkpoints={}", background)};
    };
    const RunOutcome foreground = run(config("foreground", settings(false)), false);
    const RunOutcome background = run(config("background", settings(true)), false);
    expect_same_weights(background.weights, foreground.weights);
    for (const int step : {3, 6, 9, 12, 13}) {
      const std::string folder = fmt::format("checkpoints/step-{}", step);
      for (const char* file : {"model.safetensors", "optimizer.safetensors"}) {
        const std::string wanted = bytes_of(root_ / "foreground" / folder / file);
        EXPECT_FALSE(wanted.empty());
        EXPECT_TRUE(bytes_of(root_ / "background" / folder / file) == wanted)
            << file << " of step " << step;
      }
    }
    fs::remove_all(root_ / "foreground");
    fs::remove_all(root_ / "background");
  }
}

TEST_F(Training, FailedBackgroundCheckpointEndsTheRunByName) {
  const RunConfig settings = config(
      "a", {"train.checkpoint_every=2", "train.steps=100000", "run.background_checkpoints=true"});
  fs::create_directories(root_ / "a");
  std::ofstream(root_ / "a" / "checkpoints") << "a file where the folder should be";
  try {
    run(settings, false);
    FAIL() << "nobody missed the checkpoint";
  } catch (const Failure& error) {
    EXPECT_NE(std::string(error.what()).find("the checkpoint of step 2 was not saved"),
              std::string::npos)
        << error.what();
  }
}

TEST_F(Training, SavedWithFourRanksResumesWithAnyOtherLayout) {
  for (const char* tied : {"true", "false"}) {
    const std::string tie = fmt::format("model.tie_word_embeddings={}", tied);
    const RunOutcome unbroken = run(config("unbroken", {tie}), false);
    for (const auto& [schedule, ranks] :
         {std::pair{"gpipe", 1}, std::pair{"zb-v", 2}, std::pair{"zb-1p", 8}}) {
      SCOPED_TRACE(schedule);
      fs::remove_all(root_ / "broken");
      run(config("broken", {tie, "pipeline.schedule=gis", "pipeline.ranks=4"}), false, 3);
      const RunOutcome resumed =
          run(config("broken", {tie, fmt::format("pipeline.schedule={}", schedule),
                                fmt::format("pipeline.ranks={}", ranks)}),
              true);
      expect_same_weights(resumed.weights, unbroken.weights);
    }
    fs::remove_all(root_ / "unbroken");
  }
}

TEST_F(Training, ResumeRefusesAnotherModelSeedOrData) {
  run(config("a"), false, 2);
  EXPECT_THROW(Trainer(config("a", {"model.hidden_size=64"}), true), Error);
  EXPECT_THROW(Trainer(config("a", {"run.seed=2"}), true), Error);
  std::ofstream(root_ / "corpus" / "more.txt") << "one more file";
  EXPECT_THROW(Trainer(config("a"), true), Error);
}

TEST_F(Training, DamagedCheckpointIsPassedOverOrRefusedByName) {
  run(config("a"), false, 2);
  const fs::path weights = root_ / "a" / "checkpoints" / "step-2" / "model.safetensors";
  {
    std::fstream file(weights, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(-3, std::ios::end);
    file.put('\x7f');
  }
  try {
    Trainer(config("a"), true);
    FAIL() << "an altered byte went unnoticed";
  } catch (const Failure& error) {
    EXPECT_NE(std::string(error.what()).find("model.safetensors"), std::string::npos)
        << error.what();
  }
}

TEST_F(Training, GeneratesTheSameTextFromTheSameSeed) {
  run(config("a", {"train.steps=20"}), false);
  const auto sample = [&] {
    Generator generator(root_ / "a");
    std::vector<std::int64_t> tokens;
    generator.generate(std::vector<std::int64_t>{'l', 'i'}, {.num_tokens = 30},
                       [&](std::int64_t token) { tokens.push_back(token); });
    return tokens;
  };
  const auto tokens = sample();
  EXPECT_EQ(tokens.size(), 30u);
  EXPECT_EQ(tokens, sample());
}

TEST_F(Training, VerifyPassesInBothPrecisionsAndSeesAWrongBound) {
  for (const char* dtype : {"float64", "float32"}) {
    const Verification verification =
        verify_run(config("v", {fmt::format("model.dtype={}", dtype), "pipeline.schedule=zb-2p",
                                "pipeline.ranks=3"}));
    EXPECT_TRUE(verification.pass) << dtype << " " << verification.max_relative_gradient_error;
    EXPECT_TRUE(verification.bit_identical);
    EXPECT_GT(verification.max_relative_gradient_error, 0.0);  // two different computations
  }
}

TEST_F(Training, SlicedRunResumesWithAnyOtherLayoutAndGivesTheSameBits) {
  const std::string slices = "pipeline.slices=4";
  const RunOutcome unbroken = run(config("unbroken", {slices}), false);
  ASSERT_TRUE(unbroken.result.validation_loss.has_value());
  run(config("broken", {slices, "pipeline.schedule=interleaved", "pipeline.ranks=4"}), false, 3);
  const RunOutcome resumed =
      run(config("broken", {slices, "pipeline.schedule=zb-v", "pipeline.ranks=3"}), true);
  expect_same_weights(resumed.weights, unbroken.weights);
  EXPECT_EQ(resumed.result.validation_loss, unbroken.result.validation_loss);
}

TEST_F(Training, VerifyPassesWithSlices) {
  const Verification verification = verify_run(
      config("v", {"model.dtype=float64", "pipeline.schedule=zb-1p", "pipeline.slices=4"}));
  EXPECT_TRUE(verification.pass) << verification.max_relative_gradient_error;
  EXPECT_EQ(verification.num_slices, 4);
}

TEST_F(Training, VerifyPassesWithExchangedAttention) {
  for (const char* exchange : {"pairwise", "balanced"}) {
    const Verification verification =
        verify_run(config("v", {"pipeline.ranks=4", "pipeline.slices=8",
                                fmt::format("pipeline.exchange={}", exchange)}));
    EXPECT_TRUE(verification.pass) << verification.max_relative_gradient_error;
    EXPECT_TRUE(verification.bit_identical);
  }
}

TEST_F(Training, FirstStepsFindOutWhetherExchangedAttentionPays) {
  // Slices long enough for half of one's attention to outweigh a transfer.
  const std::vector<std::string> sizes = {"pipeline.schedule=slimpipe",
                                          "pipeline.ranks=2",
                                          "pipeline.slices=4",
                                          "pipeline.microbatches=2",
                                          "pipeline.microbatch_size=1",
                                          "data.sequence_length=2048",
                                          "train.steps=10",
                                          "train.validation_batches=1",
                                          "model.num_hidden_layers=2",
                                          "train.eval_every=0"};
  const auto with = [&](const char* exchange) {
    auto overrides = sizes;
    overrides.push_back(fmt::format("pipeline.exchange={}", exchange));
    return config(fmt::format("e_{}", exchange), overrides);
  };
  const RunOutcome plain = run(with("none"), false);
  RunConfig tries = with("auto");
  tries.pipeline.offload = "auto";
  tries.pipeline.offload_replan = 0.0;
  Trainer trainer(tries, false);
  ASSERT_TRUE(trainer.plan().exchanging.has_value());
  std::vector<std::string> notes;
  TrainEvents events;
  events.note = [&](const std::string& line) { notes.push_back(line); };
  const TrainResult result = trainer.run(events);
  expect_same_weights(copy_weights(trainer.ranks()), plain.weights);
  ASSERT_EQ(notes.size(), 2u);
  EXPECT_NE(notes[0].find("the run goes on with"), std::string::npos) << notes[0];
  EXPECT_NE(notes[1].find("planned again"), std::string::npos) << notes[1];
  const bool exchanges = notes[0].find("goes on without") == std::string::npos;
  EXPECT_EQ(!trainer.plan().program.exchange.empty(), exchanges);
  EXPECT_EQ(result.memory.size(), 2u);
  EXPECT_GT(result.memory[0].total, 0);
}

double largest_difference(const NamedTensors& got, const NamedTensors& wanted) {
  double largest = got.size() == wanted.size() ? 0.0 : 1.0;
  for (const auto& [name, tensor] : wanted) {
    largest = std::max(largest, (got.at(name) - tensor).abs().max().item<double>());
  }
  return largest;
}

TEST_F(Training, ShardedVocabularyResumesWithAnyRanksAndOnTheLastStage) {
  struct Leg {
    const char* schedule;
    int ranks;
    const char* vocab;
  };
  const std::pair<Leg, Leg> cases[] = {
      {{"v-half", 4, "parallel-2"}, {"gpipe", 1, "last"}},
      {{"1f1b", 2, "last"}, {"zb-1p", 8, "parallel-1"}},
      {{"zb-v", 3, "parallel-1"}, {"interleaved", 2, "parallel-2"}}};
  for (const char* tied : {"true", "false"}) {
    // Shards group their sums by rank: the same to rounding, which fp64 makes small.
    const std::vector<std::string> common = {fmt::format("model.tie_word_embeddings={}", tied),
                                             "model.dtype=float64", "train.z_loss=1e-3"};
    const auto with = [&](const std::string& name, const Leg& leg) {
      auto all = common;
      all.push_back(fmt::format("pipeline.schedule={}", leg.schedule));
      all.push_back(fmt::format("pipeline.ranks={}", leg.ranks));
      all.push_back(fmt::format("pipeline.vocab={}", leg.vocab));
      return config(name, all);
    };
    const RunOutcome unbroken = run(config("unbroken", common), false);
    for (const auto& [before, after] : cases) {
      SCOPED_TRACE(fmt::format("{} {} to {} {}", before.schedule, before.vocab, after.schedule,
                               after.vocab));
      fs::remove_all(root_ / "broken");
      run(with("broken", before), false, 3);
      const RunOutcome resumed = run(with("broken", after), true);
      EXPECT_LT(largest_difference(resumed.weights, unbroken.weights), 1e-9);
      EXPECT_NEAR(*resumed.result.validation_loss, *unbroken.result.validation_loss, 1e-10);
    }
    fs::remove_all(root_ / "unbroken");
  }
}

TEST_F(Training, ShardedVocabularyResumesWithTheSameBitsOnTheSameRanks) {
  const std::vector<std::string> sharded = {"pipeline.vocab=parallel-2", "pipeline.ranks=3"};
  const RunOutcome unbroken = run(config("unbroken", sharded), false);
  run(config("broken", sharded), false, 3);
  auto other = sharded;
  other.emplace_back("pipeline.schedule=zb-v");
  const RunOutcome resumed = run(config("broken", other), true);
  expect_same_weights(resumed.weights, unbroken.weights);
  EXPECT_EQ(resumed.result.validation_loss, unbroken.result.validation_loss);
}

TEST_F(Training, SmoothedLabelsAgreeWithAutogradAndNeedAShardedVocabulary) {
  for (const char* vocab : {"parallel-1", "parallel-2"}) {
    SCOPED_TRACE(vocab);
    const Verification verification = verify_run(
        config("v", {"model.dtype=float64", "train.label_smoothing=0.1", "train.z_loss=1e-3",
                     fmt::format("pipeline.vocab={}", vocab), "pipeline.ranks=3"}));
    EXPECT_TRUE(verification.pass) << verification.max_relative_gradient_error;
    const Verification plain =
        verify_run(config("v", {"model.dtype=float64", fmt::format("pipeline.vocab={}", vocab)}));
    EXPECT_NE(verification.loss_pipeline, plain.loss_pipeline);
  }
  EXPECT_THROW(config("v", {"train.label_smoothing=0.1"}), InvalidArgument);
}

TEST_F(Training, ShardedVocabularyRefusesACheckpointOfAnotherAndMoreRanksThanRows) {
  const auto refusal = [&](const std::string& name, const std::vector<std::string>& overrides,
                           bool resume) {
    try {
      Trainer(config(name, overrides), resume);
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string("accepted");
  };
  run(config("a", {"pipeline.vocab=parallel-2"}), false, 1);
  EXPECT_NE(
      refusal("a", {"pipeline.vocab=parallel-2", "model.vocab_size=300"}, true).find("vocab_size"),
      std::string::npos);
  EXPECT_NE(refusal("b", {"pipeline.vocab=parallel-1", "pipeline.ranks=300"}, false)
                .find("no row for each of 300 ranks"),
            std::string::npos);
}

TEST_F(Training, VerifyPassesWithAShardedVocabulary) {
  for (const char* dtype : {"float64", "float32"}) {
    const Verification verification = verify_run(config(
        "v", {fmt::format("model.dtype={}", dtype), "pipeline.schedule=v-half", "pipeline.ranks=3",
              "pipeline.vocab=parallel-2", "train.z_loss=1e-3", "pipeline.vocab_keep=recompute"}));
    EXPECT_TRUE(verification.pass) << dtype << " " << verification.max_relative_gradient_error;
    EXPECT_EQ(verification.plain_ranks, 3);
  }
}

TEST_F(Training, SlicedRunDoesNotGrow) {
  const auto peaks_after = [&](int steps) {
    fs::remove_all(root_ / "flat");
    Trainer trainer(config("flat", {fmt::format("train.steps={}", steps), "pipeline.slices=4",
                                    "pipeline.exchange=none", "pipeline.ranks=3",
                                    "train.eval_every=0", "model.num_hidden_layers=3"}),
                    false);
    const TrainResult result = trainer.run({});
    std::vector<BytesByClass> live;
    for (const auto& rank : trainer.ranks()) live.push_back(rank->ledger().live());
    std::vector<std::int64_t> totals;
    for (const MemoryPeaks& peaks : result.memory) totals.push_back(peaks.total);
    return std::pair{live, totals};
  };
  EXPECT_EQ(peaks_after(200), peaks_after(1));
}

/// Every schedule's measured peaks against what was predicted before it ran.
class PredictedMemory : public Training, public ::testing::WithParamInterface<std::string> {
 protected:
  void expect_prediction(const std::vector<std::string>& overrides) {
    fs::remove_all(root_ / "m");
    Trainer trainer(config("m", overrides), false);
    const TrainResult result = trainer.run({});
    for (std::size_t rank = 0; rank < result.memory.size(); ++rank) {
      SCOPED_TRACE(fmt::format("{}, rank {}", fmt::join(overrides, " "), rank));
      const MemoryPeaks& predicted = trainer.plan().prediction.memory[rank];
      const MemoryPeaks& measured = result.memory[rank];
      for (const MemoryClass exact :
           {MemoryClass::kWeights, MemoryClass::kGradients, MemoryClass::kOptimizer,
            MemoryClass::kActivations, MemoryClass::kBoundary, MemoryClass::kKvCache,
            MemoryClass::kKvGradient, MemoryClass::kVocabulary}) {
        const auto index = static_cast<std::size_t>(exact);
        if (exact == MemoryClass::kVocabulary) {
          EXPECT_NEAR(static_cast<double>(measured.by_class[index]),
                      static_cast<double>(predicted.by_class[index]),
                      0.05 * static_cast<double>(predicted.by_class[index]))
              << "vocabulary";
          continue;
        }
        if (trainer.plan().copies.asked && exact == MemoryClass::kActivations) {
          // A copy back that starts later than planned may never meet the peak.
          EXPECT_LE(static_cast<double>(measured.by_class[index]),
                    1.01 * static_cast<double>(predicted.by_class[index]));
          continue;
        }
        EXPECT_NEAR(static_cast<double>(measured.by_class[index]),
                    static_cast<double>(predicted.by_class[index]),
                    0.01 * static_cast<double>(predicted.by_class[index]))
            << to_string(exact);
      }
      EXPECT_NEAR(
          static_cast<double>(measured.total), static_cast<double>(predicted.total),
          (trainer.plan().copies.asked ? 0.1 : 0.05) * static_cast<double>(predicted.total));
    }
  }
};

TEST_P(PredictedMemory, IsWhatTheLedgerMeasures) {
  for (const char* tied : {"false", "true"}) {
    for (const int ranks : {1, 2, 4}) {
      expect_prediction({fmt::format("pipeline.schedule={}", GetParam()),
                         fmt::format("pipeline.ranks={}", ranks), "pipeline.microbatches=9",
                         fmt::format("model.tie_word_embeddings={}", tied), "train.steps=2",
                         "data.sequence_length=64", "train.eval_every=0"});
    }
  }
}

class PredictedMemoryOfSlices : public PredictedMemory {};

/// Sharded vocabulary layers.
class PredictedMemoryOfShards : public PredictedMemory {};

TEST_P(PredictedMemoryOfSlices, IsWhatTheLedgerMeasures) {
  for (const char* recompute : {"none", "full"}) {
    expect_prediction({fmt::format("pipeline.schedule={}", GetParam()), "pipeline.ranks=3",
                       "pipeline.microbatches=4", "pipeline.slices=8",
                       fmt::format("model.recompute={}", recompute), "train.steps=1",
                       "data.sequence_length=64", "train.eval_every=0"});
  }
}

/// A rank's part of what E and S hand over depends on the tokens: uniform ones make it even.
TEST_F(PredictedMemoryOfShards, AreWhatTheLedgerMeasures) {
  std::vector<std::uint16_t> tokens(1 << 16);
  std::uint32_t state = 1;
  for (std::uint16_t& token : tokens) {
    state = state * 1664525U + 1013904223U;
    token = static_cast<std::uint16_t>((state >> 16) % 1000);
  }
  std::ofstream(root_ / "uniform.bin", std::ios::binary)
      .write(reinterpret_cast<const char*>(tokens.data()),
             static_cast<std::streamsize>(tokens.size() * sizeof(std::uint16_t)));
  struct Case {
    const char *schedule, *vocab, *keep, *tied;
    int ranks, slices;
  };
  for (const Case& c : {Case{"1f1b", "parallel-2", "probabilities", "false", 2, 1},
                        {"1f1b", "parallel-1", "recompute", "true", 4, 1},
                        {"v-half", "parallel-2", "recompute", "false", 4, 1},
                        {"zb-1p", "parallel-1", "probabilities", "false", 3, 1},
                        {"interleaved", "parallel-2", "auto", "true", 2, 1},
                        {"slimpipe", "parallel-2", "auto", "false", 2, 4}}) {
    expect_prediction(
        {fmt::format("data.paths=[\"{}\"]", (root_ / "uniform.bin").string()),
         "data.format=nanogpt", "data.validation_fraction=0",
         fmt::format("pipeline.schedule={}", c.schedule), fmt::format("pipeline.vocab={}", c.vocab),
         fmt::format("pipeline.vocab_keep={}", c.keep),
         fmt::format("model.tie_word_embeddings={}", c.tied),
         fmt::format("pipeline.ranks={}", c.ranks), fmt::format("pipeline.slices={}", c.slices),
         "pipeline.microbatches=9", "model.vocab_size=1000", "train.steps=2",
         "data.sequence_length=64", "train.eval_every=0"});
  }
}

TEST_F(Training, SlimPipePeaksAtItsFormula) {
  constexpr int kRanks = 8, kSlices = 16;
  for (const int chunks : {1, 2}) {
    Trainer trainer(
        config("peak", {"pipeline.schedule=slimpipe", fmt::format("pipeline.ranks={}", kRanks),
                        fmt::format("pipeline.slices={}", kSlices),
                        fmt::format("pipeline.chunks={}", chunks), "pipeline.layers=uniform",
                        "pipeline.microbatches=3", "model.num_hidden_layers=16",
                        "data.sequence_length=64", "train.steps=1", "train.eval_every=0"}),
        false);
    const TrainResult result = trainer.run({});
    const std::vector<StageMemory>& stages = trainer.plan().memory.stages;
    std::int64_t microbatch = 0;  // what one saves in the whole model
    for (const StageMemory& stage : stages) microbatch += kSlices * (stage.saved + stage.kv_cache);
    const double expected =
        static_cast<double>(microbatch) / kRanks * (1.0 + 2.0 * (kRanks - 1) / (kSlices * chunks));
    const auto of = [&](MemoryClass memory_class) {
      return static_cast<double>(result.memory[0].by_class[static_cast<std::size_t>(memory_class)]);
    };
    EXPECT_NEAR(of(MemoryClass::kActivations) + of(MemoryClass::kKvCache), expected,
                0.02 * expected);
    // With one chunk one microbatch at a time is in its backward: the gradients of all slices but
    // the last one's of the layers done, and that one's of one layer.
    const auto slice = static_cast<double>(stages[0].kv_gradient);  // of two layers
    if (chunks == 1) {
      EXPECT_EQ(of(MemoryClass::kKvGradient), (kSlices - 1) * slice + slice / 2);
    }
    fs::remove_all(root_ / "peak");
  }
}

std::vector<std::string> schedule_names() {
  std::vector<std::string> names;
  for (const ScheduleInfo& info : schedule_library()) {
    if (!info.slices_itself) names.push_back(info.name);  // one slice here
  }
  return names;
}

INSTANTIATE_TEST_SUITE_P(Schedules, PredictedMemoryOfSlices,
                         ::testing::Values("1f1b", "interleaved", "v-half", "slimpipe", "seq1f1b",
                                           "slice-v"),
                         [](const auto& test) {
                           std::string name = test.param;
                           for (char& c : name) {
                             if (std::isalnum(static_cast<unsigned char>(c)) == 0) c = '_';
                           }
                           return name;
                         });

INSTANTIATE_TEST_SUITE_P(Schedules, PredictedMemory, ::testing::ValuesIn(schedule_names()),
                         [](const auto& test) {
                           std::string name = test.param;
                           for (char& c : name) {
                             if (std::isalnum(static_cast<unsigned char>(c)) == 0) c = '_';
                           }
                           return name;
                         });

/// Everything of a run with offload that must not differ from one without.
class OffloadRun : public Training, public ::testing::WithParamInterface<std::string> {};

TEST_P(OffloadRun, GivesTheSameBitsOnBothTiersAndTheMemoryOfThePlan) {
  std::vector<std::string> sizes = {fmt::format("pipeline.schedule={}", GetParam()),
                                    "pipeline.microbatches=8", "model.num_hidden_layers=8",
                                    "train.steps=3", "train.eval_every=0"};
  if (GetParam().starts_with("sli")) {
    sizes.emplace_back("pipeline.slices=4");
    sizes.emplace_back("pipeline.exchange=none");
  }
  // Two ranks of 1F1B hold too little for a copy there and back to pay.
  if (GetParam() == "1f1b") sizes.emplace_back("pipeline.ranks=4");
  auto with = sizes;
  with[0] = "pipeline.schedule=" + (GetParam().starts_with("po") ? "po" : GetParam());
  const RunOutcome plain = run(config("plain", with), false);
  for (const char* tier : {"host", "disk"}) {
    auto overrides = sizes;
    overrides.push_back(fmt::format("pipeline.offload_tier={}", tier));
    overrides.push_back(fmt::format("pipeline.offload_dir=\"{}\"", root_.string()));
    overrides.push_back("run.check_offload=true");
    // Copies of a model this small take far longer than its passes.
    overrides.push_back("pipeline.offload_slowdown=1000");
    if (!GetParam().starts_with("po-")) overrides.push_back("pipeline.offload=full");
    Trainer trainer(config(fmt::format("with_{}", tier), overrides), false);
    const TrainResult result = trainer.run({});
    expect_same_weights(copy_weights(trainer.ranks()), plain.weights);
    EXPECT_EQ(result.last->loss, plain.result.last->loss);
    for (std::size_t rank = 0; rank < result.copies.size(); ++rank) {
      const auto activations = static_cast<std::size_t>(MemoryClass::kActivations);
      const MemoryPeaks& predicted = trainer.plan().prediction.memory[rank];
      EXPECT_LE(result.memory[rank].by_class[activations],
                1.03 * static_cast<double>(predicted.by_class[activations]));
      EXPECT_LE(result.copies[rank].peak_bytes_away,
                trainer.plan().prediction.peak_bytes_away[rank]);
    }
    EXPECT_TRUE(trainer.plan().copies.asked);
    EXPECT_EQ(std::distance(fs::directory_iterator(root_), fs::directory_iterator{}),
              std::string(tier) == "host" ? 3 : 4)
        << "only the corpus and the runs lie in the folder";
  }
}

INSTANTIATE_TEST_SUITE_P(Schedules, OffloadRun,
                         ::testing::Values("1f1b", "interleaved", "gis-h", "po-h", "po-f", "zb-v",
                                           "slimpipe", "slice-v"),
                         [](const auto& param) {
                           std::string name = param.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

/// A model so small that passes take longer than their FLOPs say, with offload planned again where
/// the first steps differ by more than `replan`.
std::vector<std::string> replanning(const std::string& replan) {
  return {"model.hidden_size=8",
          "model.intermediate_size=12",
          "model.num_attention_heads=2",
          "pipeline.schedule=po",
          "pipeline.microbatches=8",
          "pipeline.microbatch_size=4",
          "pipeline.offload_replan=" + replan,
          "run.check_offload=true",
          "train.eval_every=0",
          "train.steps=6"};
}

TEST_F(Training, OffloadPlannedAgainChangesNoBitAndReportsThePlanThatStays) {
  bool has_changed = false;
  for (const char* data : {"parallel.data=1", "parallel.data=2"}) {
    auto sizes = replanning("0");
    sizes.emplace_back(data);
    const RunOutcome plain = run(config("plain", sizes), false);
    for (const char* tier : {"host", "disk"}) {
      SCOPED_TRACE(fmt::format("{} {}", data, tier));
      auto overrides = sizes;
      overrides.emplace_back("pipeline.offload=auto");
      overrides.push_back(fmt::format("pipeline.offload_tier={}", tier));
      overrides.push_back(fmt::format("pipeline.offload_dir=\"{}\"", root_.string()));
      fs::remove_all(root_ / "again");
      Trainer trainer(config("again", overrides), false);
      const Schedule first = trainer.plan().schedule;
      std::vector<std::string> notes;
      TrainEvents events;
      events.note = [&](const std::string& line) { notes.push_back(line); };
      const TrainResult result = trainer.run(events);
      ASSERT_EQ(notes.size(), 1u);
      EXPECT_NE(notes[0].find("planned again: k = "), std::string::npos) << notes[0];
      expect_same_weights(copy_weights(trainer.ranks()), plain.weights);
      EXPECT_EQ(result.last->loss, plain.result.last->loss);
      const RunPlan& plan = trainer.plan();
      EXPECT_EQ(without_offload(plan.schedule).ranks, without_offload(first).ranks);
      has_changed = has_changed || plan.schedule.ranks != first.ranks;
      for (std::size_t rank = 0; rank < result.copies.size(); ++rank) {
        const auto activations = static_cast<std::size_t>(MemoryClass::kActivations);
        EXPECT_LE(static_cast<double>(result.memory[rank].by_class[activations]),
                  1.03 * static_cast<double>(plan.prediction.memory[rank].by_class[activations]));
        EXPECT_LE(result.copies[rank].peak_bytes_away, plan.prediction.peak_bytes_away[rank]);
      }
    }
    fs::remove_all(root_ / "plain");
  }
  EXPECT_TRUE(has_changed) << "none of four runs went on with another plan";
}

TEST_F(Training, OffloadStaysAsPlannedWhereTheFirstStepsAgree) {
  auto overrides = replanning("1e12");
  overrides.emplace_back("pipeline.offload=auto");
  Trainer trainer(config("stays", overrides), false);
  const Schedule first = trainer.plan().schedule;
  std::vector<std::string> notes;
  TrainEvents events;
  events.note = [&](const std::string& line) { notes.push_back(line); };
  trainer.run(events);
  ASSERT_EQ(notes.size(), 1u);
  EXPECT_NE(notes[0].find("the plan stays, k = "), std::string::npos) << notes[0];
  EXPECT_EQ(trainer.plan().schedule.ranks, first.ranks);
}

TEST_F(Training, OffloadKeepsNothingFromStepToStep) {
  Trainer trainer(config("long", {"pipeline.schedule=po-f", "train.steps=300", "train.eval_every=0",
                                  "pipeline.microbatches=6", "data.sequence_length=8",
                                  "pipeline.offload_slowdown=1000"}),
                  false);
  std::map<std::int64_t, BytesByClass> live;
  TrainEvents events;
  events.step = [&](const StepReport& report) {
    live[report.step] = trainer.ranks()[0]->ledger().live();
  };
  const TrainResult result = trainer.run(events);
  EXPECT_GT(result.copies[0].num_out, 300);
  EXPECT_EQ(live.at(300), live.at(6));
}

TEST_F(Training, OffloadThatCannotBeWrittenEndsTheRunWithTheReasonAndAUsableCheckpoint) {
  const auto overrides = [&](const std::string& steps) {
    return std::vector<std::string>{"pipeline.schedule=po",
                                    "pipeline.microbatches=8",
                                    "pipeline.offload=full",
                                    "pipeline.offload_tier=disk",
                                    "pipeline.offload_slowdown=1000",
                                    "pipeline.offload_replan=1e12",
                                    fmt::format("pipeline.offload_dir=\"{}\"", root_.string()),
                                    "train.eval_every=0",
                                    "train.checkpoint_every=2",
                                    "train.steps=" + steps};
  };
  const RunOutcome whole = run(config("whole", overrides("4")), false);
  // As on a full disk: after the checkpoint no file may grow.
  const auto before_signal = std::signal(SIGXFSZ, SIG_IGN);
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  std::string told;
  {
    Trainer trainer(config("broken", overrides("4")), false);
    TrainEvents events;
    events.checkpoint = [&](std::int64_t, const fs::path&) {
      rlimit none = before;
      none.rlim_cur = 0;
      setrlimit(RLIMIT_FSIZE, &none);
    };
    try {
      trainer.run(events);
    } catch (const Failure& error) {
      told = error.what();
    }
  }
  setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, before_signal);
  EXPECT_NE(told.find("the offload file in " + root_.string() + " cannot be written: "),
            std::string::npos)
      << told;
  EXPECT_NE(told.find("File too large"), std::string::npos) << told;
  const RunOutcome resumed = run(config("broken", overrides("4")), true);
  expect_same_weights(resumed.weights, whole.weights);
}

TEST_F(Training, OffloadThatCannotWorkIsRefusedBeforeTheFirstStep) {
  const auto refusal = [&](const std::vector<std::string>& overrides) {
    try {
      Trainer(config("refused", overrides), false);
    } catch (const InvalidArgument& error) {
      return std::string(error.what());
    }
    return std::string("accepted");
  };
  EXPECT_NE(refusal({"pipeline.offload=full", "pipeline.offload_tier=disk",
                     "pipeline.offload_dir=/no/such/folder"})
                .find("pipeline.offload_dir"),
            std::string::npos);
  EXPECT_NE(refusal({"pipeline.offload=7"}).find("pipeline.offload 7"), std::string::npos);
}

}  // namespace
}  // namespace sluice
