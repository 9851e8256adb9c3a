#include "sluice/cli/torchrun_job.h"

#include <c10/util/Logging.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <thread>
#include <utility>

#include "sluice/comm/agree.h"
#include "sluice/common/errors.h"
#include "sluice/runtime/device.h"
#include "sluice/runtime/tcp_store.h"

namespace sluice::cli {
namespace {

constexpr auto kStartLimit = std::chrono::minutes(5);
constexpr auto kEndLimit = std::chrono::seconds(10);

InvalidArgument needs_gpus(int size) {
  return InvalidArgument(fmt::format(
      "torchrun started {} processes, whose transport is NCCL, and that moves the memory of GPUs, "
      "but run.device = \"cpu\": set run.device = \"cuda\", or start with mpirun -n {} sluice "
      "train "
      "..., or without a launcher",
      size, size));
}

}  // namespace

TorchrunJob::TorchrunJob() : place_(torchrun_place()) {
  std::signal(SIGTERM, SIG_IGN);
  // Each lane needs a queue of its own on the GPU: one that waits must not hold up another. Read
  // when CUDA starts.
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", /*overwrite=*/0);
  // Of a store that is gone there is a line of ours.
  setenv("TORCH_CPP_LOG_LEVEL", "ERROR", /*overwrite=*/0);
  c10::initLogging();
  store_ = connect_tcp_store({place_.host, place_.port, place_.serves_store}, kStartLimit);
}

TorchrunJob::~TorchrunJob() {
  try {
    const std::string key = place_.prefix + "ended";
    store_->add(key, 1);
    if (!place_.serves_store) return;
    const auto end = std::chrono::steady_clock::now() + kEndLimit;
    while (store_->add(key, 0) < place_.size && std::chrono::steady_clock::now() < end) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
  } catch (const CommError&) {
    // Whoever served it has ended: nobody is waited for any more.
  }
}

NcclOptions TorchrunJob::options(const std::string& part) const {
  return {.rank = place_.rank,
          .size = place_.size,
          .prefix = place_.prefix + part,
          .timeout = kStartLimit,
          .last_word = {}};
}

std::unique_ptr<Transport> TorchrunJob::connect_start() {
  return connect_nccl(store_->another(), options("start/"));
}

NcclDevice TorchrunJob::load_device(const RunConfig& config) const {
  const bool cpu = config.run.device == "cpu";
  NcclDevice device;
  try {
    device.nccl = load_nccl();
  } catch (const InvalidArgument&) {
    if (cpu && std::getenv("SLUICE_NCCL_LIBRARY") == nullptr) throw needs_gpus(place_.size);
    throw;
  }
  if (cpu && !device.nccl->moves_host_memory) throw needs_gpus(place_.size);
  device.cuda = load_cuda();
  // A launcher may show every process its own GPU alone.
  device.index = device.cuda->num_devices() == 1 ? 0 : place_.local_rank;
  parse_device(config.run.device, device.index);
  device.name = device_name(*device.cuda, device.index);
  return device;
}

void TorchrunJob::find_device(Transport& start, const RunConfig& config) {
  std::exception_ptr error;
  try {
    device_ = load_device(config);
  } catch (const Error&) {
    error = std::current_exception();
  }
  agree(start, error);
  check_devices(start, device_.name);
}

std::unique_ptr<Transport> TorchrunJob::connect(const RunConfig& config,
                                                std::function<void(const std::string&)> last_word) {
  NcclOptions run = options("run/");
  run.timeout = config.run.timeout();
  run.last_word = std::move(last_word);
  return connect_nccl(store_->another(), run, device_);
}

}  // namespace sluice::cli
