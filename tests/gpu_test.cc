// The engine on a GPU: parity with autograd, the losses of the CPU, and NCCL itself. Skipped where
// no GPU is, or too few. Several ranks on one GPU are threads.
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/zeros_like.h>
#include <arpa/inet.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "sluice/comm/nccl.h"
#include "sluice/common/errors.h"
#include "sluice/runtime/device.h"
#include "sluice/runtime/tcp_store.h"
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

  RunConfig config(const std::string& device, const std::string& schedule,
                   const std::vector<std::string>& more = {}) const {
    std::vector<std::string> overrides = {
        fmt::format("run.dir=\"{}\"", (root_ / device).string()),
        fmt::format("data.paths=[\"{}\"]", (root_ / "corpus.txt").string()),
        fmt::format("run.device=\"{}\"", device),
        fmt::format("pipeline.schedule=\"{}\"", schedule),
    };
    overrides.insert(overrides.end(), more.begin(), more.end());
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

  static std::uint16_t free_port() {
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof(address);
    EXPECT_EQ(bind(fd, reinterpret_cast<const sockaddr*>(&address), length), 0);
    EXPECT_EQ(getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length), 0);
    close(fd);
    return ntohs(address.sin_port);
  }

  fs::path root_;
};

TEST_F(Gpu, GradientsAgreeWithAutograd) {
  for (const char* schedule : {"1f1b", "interleaved", "zb-1p", "zb-v", "dualpipe-v"}) {
    const Verification result = verify_run(config("cuda", schedule));
    EXPECT_LE(result.max_relative_gradient_error, 1e-5) << schedule << result.worst_parameter;
    EXPECT_TRUE(result.pass) << schedule;
  }
}

TEST_F(Gpu, TechniquesAgreeWithAutograd) {
  const std::vector<std::pair<const char*, std::vector<std::string>>> cases = {
      {"slimpipe", {"pipeline.slices=4", "pipeline.exchange=balanced"}},
      {"zb-v", {"pipeline.vocab=parallel-1"}},
      {"1f1b", {"pipeline.vocab=parallel-2", "model.tie_word_embeddings=true"}},
      {"po", {"pipeline.offload=full", "run.check_offload=true"}},
  };
  for (const auto& [schedule, more] : cases) {
    const Verification result = verify_run(config("cuda", schedule, more));
    EXPECT_LE(result.max_relative_gradient_error, 1e-5) << schedule << result.worst_parameter;
    EXPECT_TRUE(result.pass) << schedule;
  }
}

TEST_F(Gpu, CopiesToTheHostAndBackChangeNoLoss) {
  const std::vector<double> stayed = losses(config("cuda", "po"));
  const std::vector<double> moved =
      losses(config("cuda", "po", {"pipeline.offload=full", "run.check_offload=true"}));
  ASSERT_EQ(stayed.size(), moved.size());
  for (std::size_t i = 0; i < stayed.size(); ++i) {
    EXPECT_NEAR(moved[i], stayed[i], 1e-5 * stayed[i]);
  }
}

TEST_F(Gpu, TrainsToTheLossesOfTheCpu) {
  const std::vector<double> gpu = losses(config("cuda", "zb-1p"));
  const std::vector<double> cpu = losses(config("cpu", "zb-1p"));
  ASSERT_EQ(gpu.size(), cpu.size());
  ASSERT_EQ(gpu.size(), 3U);
  for (std::size_t i = 0; i < gpu.size(); ++i) EXPECT_NEAR(gpu[i], cpu[i], 1e-4 * cpu[i]);
}

class GpuNccl : public Gpu {
 protected:
  void SetUp() override {
    Gpu::SetUp();
    if (IsSkipped()) return;
    try {
      nccl_ = load_nccl();
      cuda_ = load_cuda();
    } catch (const InvalidArgument& missing) {
      GTEST_SKIP() << missing.what();
    }
  }

  NcclDevice device(int index) const {
    return {.nccl = nccl_, .cuda = cuda_, .index = index, .name = device_name(*cuda_, index)};
  }

  std::shared_ptr<const NcclApi> nccl_;
  std::shared_ptr<const CudaApi> cuda_;
};

// NCCL refuses two ranks on one GPU: with one GPU a rank can only talk to itself.
TEST_F(GpuNccl, MovesBytesFromARankToItselfInTheOrderOfStreamsAndEvents) {
  const c10::Device gpu = parse_device("cuda");
  use_device(gpu);
  NcclUniqueId id{};
  nccl_->check(nccl_->get_unique_id(&id), "ncclGetUniqueId");
  NcclComm comm = nullptr;
  nccl_->check(nccl_->comm_init_rank(&comm, 1, id, 0), "ncclCommInitRank");
  void* stream = cuda_->make_stream();
  void* ready = cuda_->make_event();
  void* done = cuda_->make_event();
  const at::Tensor sent = at::arange(1 << 20, at::TensorOptions(gpu).dtype(at::kFloat));
  const at::Tensor got = at::zeros_like(sent);
  cuda_->check(cuda_->event_record(ready, nullptr), "cudaEventRecord");
  cuda_->check(cuda_->stream_wait_event(stream, ready, 0), "cudaStreamWaitEvent");
  nccl_->check(nccl_->group_start(), "ncclGroupStart");
  nccl_->check(nccl_->send(sent.data_ptr(), sent.nbytes(), kNcclInt8, 0, comm, stream), "ncclSend");
  nccl_->check(nccl_->recv(got.data_ptr(), got.nbytes(), kNcclInt8, 0, comm, stream), "ncclRecv");
  nccl_->check(nccl_->group_end(), "ncclGroupEnd");
  cuda_->check(cuda_->event_record(done, stream), "cudaEventRecord");
  while (!cuda_->is_done(done)) std::this_thread::yield();
  EXPECT_TRUE(at::equal(got, sent));
  int error = kNcclSuccess;
  nccl_->check(nccl_->comm_get_async_error(comm, &error), "ncclCommGetAsyncError");
  EXPECT_EQ(error, kNcclSuccess);
  nccl_->check(nccl_->comm_destroy(comm), "ncclCommDestroy");
}

// A rank per GPU as threads here; as processes in scripts/check_gpu.py.
TEST_F(GpuNccl, TwoGpusTrainToTheLossesOfTwoThreadsOnOne) {
  if (cuda_->num_devices() < 2) GTEST_SKIP() << "one GPU; two are needed";
  const RunConfig settings = config("cuda", "zb-1p");
  const std::vector<double> threads = losses(settings);
  const std::uint16_t port = free_port();
  auto served = connect_tcp_store({.host = "localhost", .port = port, .serve = true},
                                  std::chrono::seconds(20));
  std::vector<double> over_nccl;
  std::vector<std::jthread> ranks;
  for (int rank = 0; rank < 2; ++rank) {
    ranks.emplace_back([&, rank] {
      auto store = connect_tcp_store({.host = "localhost", .port = port}, std::chrono::seconds(20));
      std::vector<std::unique_ptr<Transport>> world;
      world.push_back(connect_nccl(std::move(store), {.rank = rank, .size = 2, .prefix = "gpu/"},
                                   device(rank)));
      TrainEvents events;
      events.step = [&](const StepReport& report) { over_nccl.push_back(report.loss); };
      RunConfig mine = settings;
      mine.run.dir = (root_ / "nccl").string();
      Trainer(mine, /*resume=*/false, std::move(world), rank).run(events);
    });
  }
  ranks.clear();
  ASSERT_EQ(over_nccl.size(), threads.size());
  for (std::size_t i = 0; i < threads.size(); ++i) {
    EXPECT_NEAR(over_nccl[i], threads[i], 1e-5 * threads[i]);
  }
}

}  // namespace
}  // namespace sluice
