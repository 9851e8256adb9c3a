#include <gtest/gtest.h>

#include <random>

#include "sluice/train/config.h"
#include "sluice/train/test_files.h"

namespace sluice {
namespace {

const std::string kData = "[data]\npaths = [\"text\"]\n";

RunConfig parse(const std::string& text, const std::vector<std::string>& overrides = {}) {
  return parse_config(kData + text, "config.toml", overrides);
}

std::string refusal(const std::string& text, const std::vector<std::string>& overrides = {}) {
  return message_of<InvalidArgument>([&] { parse(text, overrides); });
}

TEST(RunConfig, NeedsNothingButData) {
  RunConfig expected;
  expected.data.paths = {"text"};
  EXPECT_EQ(to_toml(parse("")), to_toml(expected));
  EXPECT_EQ(parse(""), expected);
  EXPECT_CONTAINS(message_of<InvalidArgument>([] { parse_config("", "config.toml"); }),
                  "data.paths");
}

TEST(RunConfig, ReadsEverySection) {
  const RunConfig config = parse(R"(sequence_length = 128
validation_fraction = 0
ignore = "*.pyc"
[model]
vocab_size = 300
hidden_size = 64
num_attention_heads = 8
num_key_value_heads = 4
rope_theta = 5e5
tie_word_embeddings = true
dtype = "float64"
recompute = "full"
[pipeline]
schedule = "gpipe"
ranks = 4
layers = [2, 1, 1, 0]
microbatches = 7
[train]
steps = 40
learning_rate = 1e-3
grad_clip = 1
[run]
seed = 9
device = "cuda"
tensorboard = true
)");
  EXPECT_EQ(config.data.sequence_length, 128);
  EXPECT_EQ(config.data.validation_fraction, 0.0);
  EXPECT_EQ(config.data.ignore, std::vector<std::string>{"*.pyc"});
  EXPECT_EQ(config.model.vocab_size, 300);
  EXPECT_EQ(config.model.rope_theta, 5e5);
  EXPECT_TRUE(config.model.tie_word_embeddings);
  EXPECT_EQ(config.model.dtype, DType::kFloat64);
  EXPECT_EQ(config.model.recompute, Recompute::kFull);
  EXPECT_EQ(config.pipeline.schedule, "gpipe");
  EXPECT_EQ(config.pipeline.ranks, 4);
  EXPECT_EQ(config.pipeline.layers, "2,1,1,0");
  EXPECT_EQ(config.global_batch(), 28);
  EXPECT_EQ(config.train.grad_clip, 1.0);
  EXPECT_EQ(config.run.seed, 9);
  EXPECT_EQ(config.run.device, "cuda");
  EXPECT_TRUE(config.run.tensorboard);
}

TEST(RunConfig, DerivesWhatIsNotGiven) {
  const TrainConfig derived = parse("[train]\nsteps = 40\nlearning_rate = 1e-3\n").train;
  EXPECT_DOUBLE_EQ(derived.min_learning_rate, 1e-4);
  EXPECT_EQ(derived.warmup_steps, 2);
  const TrainConfig given =
      parse("[train]\nsteps = 40\nlearning_rate = 1e-3\nmin_learning_rate = 0\nwarmup_steps = 0\n")
          .train;
  EXPECT_EQ(given.min_learning_rate, 0.0);
  EXPECT_EQ(given.warmup_steps, 0);
}

TEST(RunConfig, NamesTheNearestKeyForAnUnknownOne) {
  const std::string text = refusal("[model]\nhidden_sise = 3\n");
  EXPECT_CONTAINS(text, "model.hidden_sise (config.toml line 4): no such key");
  EXPECT_CONTAINS(text, "did you mean model.hidden_size");
  EXPECT_CONTAINS(refusal("[train]\nseed = 1\n"), "did you mean run.seed");
  EXPECT_CONTAINS(refusal("[modle]\n"), "did you mean model");
  EXPECT_CONTAINS(refusal("[run]\nzzzzzzzzzzz = 1\n"), "keys of [run]: dir, seed");
  EXPECT_CONTAINS(message_of<InvalidArgument>([] { parse_config("ranks = 2\n", "c"); }),
                  "did you mean pipeline.ranks");
  EXPECT_CONTAINS(message_of<InvalidArgument>([] { parse_config("model = 2\n", "c"); }), "[model]");
}

TEST(RunConfig, RefusesWrongTypesAndValuesWithTheRule) {
  const std::pair<const char*, const char*> cases[] = {
      {"[model]\nhidden_size = \"64\"\n", "model.hidden_size = '64'"},
      {"[model]\nhidden_size = 64.0\n", "whole number"},
      {"[model]\nhidden_size = 0\n", "from 1 to"},
      {"[model]\nrope_theta = 0\n", "above 0"},
      {"[model]\nrope_theta = nan\n", "above 0"},
      {"[model]\nrope_theta = inf\n", "above 0"},
      {"[model]\nrope_theta = true\n", "above 0"},
      {"[model]\ntie_word_embeddings = 1\n", "true or false"},
      {"[model]\ndtype = \"float16\"\n", "float32, float64, bfloat16"},
      {"[model]\nrecompute = \"some\"\n", "none, selective, full"},
      {"[pipeline]\nranks = 0\n", "pipeline.ranks = 0 (config.toml line 4)"},
      {"[pipeline]\nranks = 3000000000\n", "pipeline.ranks"},
      {"[pipeline]\nlayers = []\n", "layout string"},
      {"[pipeline]\nlayers = [1, -1]\n", "layout string"},
      {"[pipeline]\nlayers = [1, \"a\"]\n", "layout string"},
      {"[pipeline]\nlayers = 3\n", "layout string"},
      {"[pipeline]\nexchange = \"all\"\n", "none, pairwise, balanced"},
      {"[pipeline]\noffload = 0\n", "none, half, full"},
      {"[pipeline]\nschedule = \"1f1c\"\n", "1f1b"},
      {"[train]\nbeta1 = 1\n", "below 1"},
      {"[train]\nbeta2 = -0.1\n", "at least 0"},
      {"[train]\nmin_learning_rate = 1\n", "train.learning_rate"},
      {"[run]\ndir = \"\"\n", "run.dir"},
      {"[run]\ndir = 3\n", "text in quotes"},
      {"[run]\nseed = -1\n", "at least 0"},
      {"[run]\nseed = 2024-01-01\n", "at least 0"},
      {"[run]\ndevice = \"tpu\"\n", "cpu, cuda"},
      {"[run]\nseed = 1\nseed = 2\n", "config.toml line 5"},
      {"[run\n", "config.toml line 3"},
      {"[run]\ndir = \"\\xff\"\n", "config.toml line 4"},
  };
  for (const auto& [text, part] : cases) EXPECT_CONTAINS(refusal(text), part);
  EXPECT_CONTAINS(message_of<InvalidArgument>([] { parse_config("[data]\npaths = [1]\n", "c"); }),
                  "list of");
}

TEST(RunConfig, CutsSequencesIntoEqualSlicesOrNamesTheNearestLengthsThatFit) {
  const auto with_length = [](int length) {
    return std::vector<std::string>{fmt::format("data.sequence_length={}", length),
                                    "pipeline.slices=8"};
  };
  EXPECT_EQ(parse("", with_length(96)).pipeline.slices, 8);
  EXPECT_CONTAINS(refusal("", with_length(100)), "nearest lengths that fit are 96 and 104");
  EXPECT_CONTAINS(refusal("", with_length(5)), "nearest lengths that fit are 8,");
}

TEST(RunConfig, ExchangesAttentionOnlyOfSlicesThatCanBeHalved) {
  EXPECT_CONTAINS(refusal("", {"pipeline.exchange=balanced"}), "set pipeline.slices to 2 or more");
  const std::vector<std::string> one_token = {"pipeline.exchange=pairwise", "pipeline.slices=8",
                                              "data.sequence_length=8",
                                              "model.num_key_value_heads=1"};
  EXPECT_CONTAINS(refusal("", one_token), "set pipeline.slices to 4 or less");
  EXPECT_EQ(parse("", {"pipeline.exchange=balanced", "pipeline.slices=8"}).pipeline.exchange,
            "balanced");
}

TEST(RunConfig, ChecksTheModelsSizesTogether) {
  EXPECT_CONTAINS(refusal("[model]\nnum_attention_heads = 5\n"), "num_attention_heads");
}

TEST(Override, TakesTomlValuesAndBareWords) {
  const RunConfig config =
      parse("[train]\nsteps = 40\n",
            {"train.steps=80", "train.learning_rate = 2e-4", "pipeline.schedule=zb-1p",
             "pipeline.layers=2,2", "model.tie_word_embeddings=true", "run.dir=2024-01-01",
             "data.paths=[\"a\", \"b c\"]", "data.ignore=*.pyc", "model.dtype=fp64", "run.seed=7"});
  EXPECT_EQ(config.train.steps, 80);
  EXPECT_EQ(config.train.learning_rate, 2e-4);
  EXPECT_EQ(config.pipeline.schedule, "zb-1p");
  EXPECT_EQ(config.pipeline.layers, "2,2");
  EXPECT_TRUE(config.model.tie_word_embeddings);
  EXPECT_EQ(config.run.dir, "2024-01-01");
  EXPECT_EQ(config.data.paths, (std::vector<std::string>{"a", "b c"}));
  EXPECT_EQ(config.data.ignore, std::vector<std::string>{"*.pyc"});
  EXPECT_EQ(config.model.dtype, DType::kFloat64);
  EXPECT_EQ(config.run.seed, 7);
}

TEST(Override, TakesTextThatOnlyLooksLikeAnotherType) {
  EXPECT_EQ(parse("", {"run.dir=5"}).run.dir, "5");
  EXPECT_EQ(parse("", {"run.dir=true"}).run.dir, "true");
  EXPECT_EQ(parse("", {"run.dir=\"a=b\""}).run.dir, "a=b");
  EXPECT_EQ(parse("", {"run.dir=a=b"}).run.dir, "a=b");
  EXPECT_EQ(parse("", {"pipeline.layers=4"}).pipeline.layers, "4");
  EXPECT_EQ(parse("", {"pipeline.layers=Et*3|tL"}).pipeline.layers, "Et*3|tL");
  EXPECT_EQ(parse("", {"data.include=*.py", "data.include="}).data.include,
            std::vector<std::string>{});
}

TEST(Override, CannotReachOtherKeys) {
  EXPECT_EQ(parse("", {"run.dir=x\nseed = 5"}).run.seed, RunSection{}.seed);
  EXPECT_CONTAINS(refusal("", {"run.seed=1\nv = 2"}), "run.seed");
}

TEST(Override, IsRefusedWithTheRule) {
  EXPECT_CONTAINS(refusal("", {"train.steps"}), "section.key=value");
  EXPECT_CONTAINS(refusal("", {"=3"}), "section.key=value");
  EXPECT_CONTAINS(refusal("", {"train.stps=3"}), "did you mean train.steps");
  EXPECT_CONTAINS(refusal("", {"steps=3"}), "did you mean train.steps");
  EXPECT_CONTAINS(refusal("", {"train.steps=many"}), "train.steps = 'many' (--set)");
  EXPECT_CONTAINS(refusal("", {"pipeline.layers=[1,"}), "not complete TOML");
  EXPECT_CONTAINS(refusal("", {"run.dir=\xff"}), "UTF-8");
}

TEST(RunConfig, IsWrittenAsTomlThatReadsBackTheSame) {
  RunConfig config = parse("");
  EXPECT_EQ(parse_config(to_toml(config), "again"), config);
  config.model.rope_theta = 1.0 / 3.0;
  config.model.rms_norm_eps = 1e-300;
  config.model.recompute = Recompute::kSelective;
  config.model.dtype = DType::kBFloat16;
  config.data.paths = {"a \"quoted\" \\ path", "tab\tand\nline", "üñí"};
  config.pipeline.layers = "3,1";
  config.train.learning_rate = 123456789.0;
  config.run.seed = std::numeric_limits<std::int64_t>::max();
  EXPECT_EQ(parse_config(to_toml(config), "again"), config);
}

TEST(RunConfig, DescribesEveryKey) {
  const std::string text = describe_config_keys();
  for (const char* part :
       {"[model]", "hidden_size = 128", "paths = []", "timeout_seconds = 300.0"}) {
    EXPECT_CONTAINS(text, part);
  }
}

TEST(RunConfig, NamesAFileThatCannotBeRead) {
  EXPECT_CONTAINS(message_of<InvalidArgument>([] { load_config("/nowhere/c.toml"); }),
                  "/nowhere/c.toml: No such file");
}

TEST(RunConfig, TakesTheModelsSizesFromAFolderOfWeights) {
  const TestFolder folder;
  folder.write("config.json", R"({"model_type": "llama", "vocab_size": 99, "hidden_size": 32,
    "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "rms_norm_eps": 1e-5})");
  const std::string weights = "model.weights=" + folder.path().string();
  const RunConfig config = parse("", {weights});
  EXPECT_EQ(config.model.vocab_size, 99);
  EXPECT_EQ(config.model.num_hidden_layers, 3);
  EXPECT_EQ(parse("", {weights, "model.vocab_size=99"}), config);
  EXPECT_CONTAINS(refusal("", {weights, "model.vocab_size=100"}), "made with 99");
  EXPECT_CONTAINS(refusal("", {"model.weights=/nowhere"}), "/nowhere has no config.json");
}

// Any text is either read or refused with one of our errors; nothing else may happen.
TEST(RunConfig, SurvivesDamagedText) {
  const std::string good = to_toml(parse(""));
  std::mt19937 random(1);
  const std::string alphabet = "[]{}=\"'#\n.,-+e0123456789abctruefalsninf \\u\xff";
  for (int round = 0; round < 3000; ++round) {
    std::string text = good;
    for (std::size_t edits = random() % 6 + 1; edits > 0; --edits) {
      const std::size_t at = random() % text.size();
      const char c = alphabet[random() % alphabet.size()];
      switch (random() % 3) {
        case 0:
          text[at] = c;
          break;
        case 1:
          text.insert(at, 1, c);
          break;
        default:
          text.erase(at, random() % 4);
      }
    }
    try {
      parse_config(text, "fuzz");
    } catch (const Error&) {
    }
  }
}

TEST(Override, SurvivesAnyValue) {
  std::mt19937 random(2);
  const char* const keys[] = {"run.dir",     "train.steps",     "data.paths",
                              "model.dtype", "pipeline.layers", "pipeline.offload"};
  const std::string alphabet = "[]{}=\"'#\n.,-+e0123456789abctruefalsninf \\u\xff\x01";
  for (int round = 0; round < 3000; ++round) {
    std::string text = std::string(keys[random() % 6]) + "=";
    for (std::size_t length = random() % 12; length > 0; --length) {
      text += alphabet[random() % alphabet.size()];
    }
    try {
      parse("", {text});
    } catch (const Error&) {
    }
  }
}

}  // namespace
}  // namespace sluice
