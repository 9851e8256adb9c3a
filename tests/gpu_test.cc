// The engine on a GPU: parity with autograd, and the losses of the CPU. Skipped where no GPU is.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "sluice/common/errors.h"
#include "sluice/runtime/device.h"
#include "sluice/train/trainer.h"
#include "sluice/train/verify_run.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;

bool has_gpu() {
  try {
    parse_device("cuda");
    return true;
  } catch (const InvalidArgument&) {
    return false;
  }
}

class Gpu : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!has_gpu()) GTEST_SKIP() << "this torch sees no GPU";
    root_ = fs::temp_directory_path() / fmt::format("sluice_gpu_{}", getpid());
    fs::create_directories(root_);
    std::ofstream corpus(root_ / "corpus.txt");
    for (int line = 0; line < 400; ++line) corpus << "line " << line * 7 % 31 << " of the corpus\n";
  }
  void TearDown() override { fs::remove_all(root_); }

  RunConfig config(const std::string& device, const std::string& schedule) const {
    const std::vector<std::string> overrides = {
        fmt::format("run.dir=\"{}\"", (root_ / device).string()),
        fmt::format("data.paths=[\"{}\"]", (root_ / "corpus.txt").string()),
        fmt::format("run.device=\"{}\"", device),
        fmt::format("pipeline.schedule=\"{}\"", schedule),
    };
    return parse_config(R"(
[model]
vocab_size = 256
hidden_size = 64
intermediate_size = 96
num_hidden_layers = 8
num_attention_heads = 4
num_key_value_heads = 2
[data]
sequence_length = 32
validation_fraction = 0
[pipeline]
ranks = 2
microbatches = 4
microbatch_size = 2
[train]
steps = 3
eval_every = 0
)",
                        "test", overrides);
  }

  std::vector<double> losses(const RunConfig& config) const {
    std::vector<double> losses;
    TrainEvents events;
    events.step = [&losses](const StepReport& report) { losses.push_back(report.loss); };
    Trainer(config, /*resume=*/false).run(events);
    return losses;
  }

 private:
  fs::path root_;
};

TEST_F(Gpu, GradientsAgreeWithAutograd) {
  for (const char* schedule : {"1f1b", "interleaved", "zb-1p", "zb-v", "dualpipe-v"}) {
    const Verification result = verify_run(config("cuda", schedule));
    EXPECT_LE(result.max_relative_gradient_error, 1e-5) << schedule << result.worst_parameter;
    EXPECT_TRUE(result.pass) << schedule;
  }
}

TEST_F(Gpu, TrainsToTheLossesOfTheCpu) {
  const std::vector<double> gpu = losses(config("cuda", "zb-1p"));
  const std::vector<double> cpu = losses(config("cpu", "zb-1p"));
  ASSERT_EQ(gpu.size(), cpu.size());
  ASSERT_EQ(gpu.size(), 3U);
  for (std::size_t i = 0; i < gpu.size(); ++i) EXPECT_NEAR(gpu[i], cpu[i], 1e-4 * cpu[i]);
}

}  // namespace
}  // namespace sluice
