#include "sluice/cli/processes.h"

#include <fmt/format.h>

#include <chrono>
#include <condition_variable>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <thread>
#include <utility>

#include "sluice/cli/output.h"
#include "sluice/cli/torchrun_job.h"
#include "sluice/comm/agree.h"
#include "sluice/comm/launch.h"
#include "sluice/comm/mpi.h"
#include "sluice/common/errors.h"
#include "sluice/train/world_check.h"

namespace sluice::cli {
namespace {

/// mpirun kills what is left of a job as soon as processes of it have ended, and a second after it
/// lost one: this process has printed its line, and waits until the others have printed theirs.
[[noreturn]] void leave(int code) {
  std::fflush(nullptr);
  std::this_thread::sleep_for(std::chrono::milliseconds(800));
  std::_Exit(code);
}

/// Ends the process when a part of the start that cannot be interrupted takes too long.
class StartLimit {
 public:
  StartLimit(std::chrono::seconds limit, std::string what)
      : thread_([this, limit, text = std::move(what)](const std::stop_token& stop) {
          std::unique_lock lock(mutex_);
          if (over_.wait_for(lock, stop, limit, [] { return false; }) || stop.stop_requested()) {
            return;
          }
          leave(report(ExitCode::kPeerLost, text));
        }) {}

 private:
  std::mutex mutex_;
  std::condition_variable_any over_;
  std::jthread thread_;
};

}  // namespace

struct Processes::Job {
  std::string launcher;
  int rank = 0;
  std::unique_ptr<MpiSession> session;    // of mpirun or srun
  std::unique_ptr<TorchrunJob> torchrun;  // of torchrun
  std::unique_ptr<Transport> start;       // for what is agreed on before the run has its own
};

Processes::Processes() {
  const auto launch = detect_launch();
  if (!launch || launch->size == 1) return;
  job_ = std::make_unique<Job>();
  job_->launcher = launch->name;
  job_->rank = launch->rank;
  const StartLimit limit(std::chrono::minutes(5),
                         fmt::format("rank {} waited for the other processes of {} to start for "
                                     "more than 5 minutes",
                                     launch->rank, launch->name));
  if (launch->kind == Launch::Kind::kTorchrun) {
    job_->torchrun = std::make_unique<TorchrunJob>();
    job_->start = job_->torchrun->connect_start();
    return;
  }
  job_->session = std::make_unique<MpiSession>();
  if (job_->session->size() != launch->size) {
    throw InvalidArgument(
        fmt::format("{} started {} processes, and MPI finds {}: the two do not know each other; "
                    "start with srun "
                    "--mpi=pmix, or with the mpirun of this MPI",
                    launch->name, launch->size, job_->session->size()));
  }
  job_->start = job_->session->connect();
}

Processes::~Processes() {
  if (!job_) return;
  job_->start.reset();
  const StartLimit limit(std::chrono::minutes(10),
                         fmt::format("rank {} waited for the other processes to end for more than "
                                     "10 minutes",
                                     job_->rank));
  job_->torchrun.reset();
  job_->session.reset();
}

bool Processes::is_job() const { return job_ != nullptr; }

RunConfig Processes::load_together(const std::function<RunConfig()>& load) {
  if (!job_) return load();
  RunConfig config;
  std::exception_ptr error;
  try {
    config = load();
  } catch (...) {
    error = std::current_exception();
  }
  agree(*job_->start, error);
  return config;
}

/// Refuses a transport that is not the launcher's.
void Processes::check_transport(const RunConfig& config) const {
  const std::string& transport = config.run.transport;
  const int size = config.num_ranks();
  if (job_ && job_->session && config.run.device == "cuda" && !MpiSession::moves_device_memory()) {
    throw InvalidArgument(fmt::format(
        "run.device = \"cuda\": the MPI of {} cannot move device memory (it was built without "
        "CUDA); start with torchrun --no-python --nproc-per-node N, or use an MPI that can",
        job_->launcher));
  }
  if (transport == "auto" || (!job_ && transport == "threads")) return;
  const bool torchrun = transport == "nccl";
  if (!job_ && torchrun && size == 1) return;  // one rank has nobody to talk to
  if (!job_) {
    throw InvalidArgument(fmt::format(
        "run.transport = \"{}\": this process was started by itself; start {} of them with {} {} "
        "sluice train ..., or set run.transport = \"threads\"",
        transport, size, torchrun ? "torchrun --no-python --nproc-per-node" : "mpirun -n", size));
  }
  if (transport == "threads") {
    throw InvalidArgument(fmt::format(
        "run.transport = \"threads\": {} started several processes; start one without it, or set "
        "run.transport = \"auto\"",
        job_->launcher));
  }
  if (torchrun == (job_->torchrun != nullptr)) return;
  throw InvalidArgument(
      fmt::format("run.transport = \"{}\": {} started these processes; start them with {}, or set "
                  "run.transport = \"auto\"",
                  transport, job_->launcher,
                  torchrun ? "torchrun --no-python --nproc-per-node N" : "mpirun -n N"));
}

std::vector<std::unique_ptr<Transport>> Processes::connect(const RunConfig& config, bool resume) {
  check_transport(config);
  std::vector<std::unique_ptr<Transport>> world;
  if (!job_) return world;
  check_world(*job_->start, config, resume, job_->launcher.c_str());
  const auto last_word = [](const std::string& line) { leave(report(ExitCode::kPeerLost, line)); };
  if (job_->torchrun) {
    job_->torchrun->find_device(*job_->start, config);
    world.push_back(job_->torchrun->connect(config, last_word));
  } else {
    MpiOptions options;
    options.timeout = config.run.timeout();
    options.last_word = last_word;
    world.push_back(job_->session->connect(options));
  }
  job_->start.reset();
  return world;
}

int Processes::gpu() const { return job_ && job_->torchrun ? job_->torchrun->gpu() : 0; }

void Processes::leave_if_job(const std::exception_ptr& error) {
  if (!job_) return;
  std::signal(SIGTERM, SIG_IGN);
  leave(report_error(error));
}

}  // namespace sluice::cli
