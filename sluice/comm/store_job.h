// store_job.h - the ranks of a job that meet in a store: small collectives, the first error for
// all, and a watch over lost peers and waits. Free of GPUs. Read next: nccl.h.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "sluice/comm/backoff.h"
#include "sluice/comm/peers.h"
#include "sluice/comm/store.h"
#include "sluice/common/errors.h"

namespace sluice {

struct StoreJobOptions {
  int rank = 0;
  int size = 1;
  std::string prefix;                        // of all keys; the same on all ranks, never used twice
  std::chrono::milliseconds timeout{60000};  // of every wait
  /// Called on a helper thread when the job is lost, or a wait is past its limit inside a library
  /// that cannot be interrupted, and this rank has not noticed for half a second. Gets the line to
  /// print; may end the process.
  std::function<void(const std::string& report)> last_word;
  std::function<std::string()> last_done;  // for reports
};

/// This rank's part in a job. Two helper threads: one listens to the store, one watches the peers
/// of this machine and this rank's own waits, and needs nothing that a lost peer could hold up.
/// Threads: the rank's, except abort().
class StoreJob {
 public:
  StoreJob(std::unique_ptr<Store> store, StoreJobOptions options);
  ~StoreJob();
  StoreJob(const StoreJob&) = delete;
  StoreJob& operator=(const StoreJob&) = delete;

  int rank() const { return options_.rank; }
  int size() const { return options_.size; }

  /// Everybody's text, by place in `members` (ranks of the job). All members call it in the same
  /// order; `scope` names the group. Throws: CommError.
  std::vector<std::string> gather(const std::string& scope, int round,
                                  const std::vector<int>& members, const std::string& mine);

  void set(const std::string& key, const std::string& value);

  /// Waits for a value. `what` describes the wait for a report.
  std::string wait_for(const std::string& key, const std::string& what);

  /// Polls `done`. Throws: CommError on abort or when the time limit passes; `describe` begins its
  /// text.
  template <typename Done, typename Describe>
  void wait_until(Done done, Describe describe);

  /// Runs a call that cannot be interrupted; past the time limit the last word is spoken.
  template <typename Call>
  void run_limited(const std::string& what, Call call);

  /// The first reason stays and is told to all ranks.
  void abort(const std::string& reason);
  bool aborted() const { return aborted_.load(std::memory_order_acquire); }
  [[noreturn]] void throw_abort(const std::string& what);

  /// The rank's own thread knows of its error: nobody need speak for it.
  void notice() { noticed_ = true; }

  /// `check` is asked a few times a second and returns the reason when the job is lost; `stop` is
  /// called once, on a helper thread, after it is. Both end before the returned guard does.
  using Hook = std::shared_ptr<void>;
  [[nodiscard]] Hook add_hooks(std::function<std::optional<std::string>()> check,
                               std::function<void()> stop);

 private:
  struct Hooks {
    std::function<std::optional<std::string>()> check;
    std::function<void()> stop;
  };
  using Clock = std::chrono::steady_clock;

  /// Marks what this rank waits for, for the watch; the outermost mark counts.
  class Mark {
   public:
    Mark(StoreJob& job, std::string what);
    ~Mark();
    Mark(const Mark&) = delete;
    Mark& operator=(const Mark&) = delete;

   private:
    StoreJob& job_;
    bool outermost_;
  };

  std::string key(const std::string& name) const { return options_.prefix + name; }
  [[noreturn]] void throw_timeout(const std::string& what);
  bool take_reason(const std::string& reason, bool tell);
  std::optional<std::string> poll(const std::string& key);
  void learn_peers();
  void listen(const std::stop_token& stop, std::unique_ptr<Store> store);
  void hear(Store& store);
  void watch(const std::stop_token& stop);
  void check_peers();
  void check_hooks();
  void check_wait();
  void sleep(const std::stop_token& stop, std::chrono::milliseconds time);
  std::string text_of(const std::string& what) const;

  const std::unique_ptr<Store> store_;
  const StoreJobOptions options_;
  const ProcessName self_ = this_process();
  std::vector<ProcessName> processes_;  // by rank
  std::atomic<bool> aborted_ = false;
  std::atomic<bool> noticed_ = false;
  mutable std::mutex mutex_;  // of what follows
  std::string reason_;
  bool tell_ = false;  // the others do not know the reason yet
  bool told_ = false;
  std::string waiting_for_;
  std::optional<Clock::time_point> waiting_since_;
  std::condition_variable_any changed_;
  std::mutex hooks_mutex_;
  std::vector<std::weak_ptr<Hooks>> hooks_;
  std::jthread listener_;
  std::jthread watcher_;
};

template <typename Done, typename Describe>
void StoreJob::wait_until(Done done, Describe describe) {
  Backoff backoff;
  std::optional<Clock::time_point> deadline;
  std::optional<Mark> mark;
  for (;;) {
    if (aborted()) throw_abort(describe());
    if (done()) return;
    if (!backoff.pause()) continue;
    const auto now = Clock::now();
    if (!deadline) {
      deadline = now + options_.timeout;
      mark.emplace(*this, describe());
    }
    if (now >= *deadline) throw_timeout(describe());
  }
}

template <typename Call>
void StoreJob::run_limited(const std::string& what, Call call) {
  if (aborted()) throw_abort(what);
  try {
    const Mark mark(*this, what);
    call();
  } catch (const CommError&) {
    if (!aborted()) throw;  // else the call failed because of that
  }
  if (aborted()) throw_abort(what);
}

}  // namespace sluice
