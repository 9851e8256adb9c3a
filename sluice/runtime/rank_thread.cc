#include "sluice/runtime/rank_thread.h"

#include <ATen/Parallel.h>

#include <exception>
#include <mutex>
#include <thread>

namespace sluice {

RankThreadInit::RankThreadInit() { at::set_num_threads(1); }

void run_ranks(const std::vector<std::unique_ptr<Transport>>& transports,
               const std::function<void(Transport&)>& body) {
  std::mutex mutex;
  std::exception_ptr first_error;
  std::vector<std::jthread> threads;
  for (const auto& transport : transports) {
    threads.emplace_back([&] {
      const RankThreadInit init;
      try {
        body(*transport);
      } catch (const std::exception& error) {
        {
          const std::lock_guard lock(mutex);
          if (!first_error) first_error = std::current_exception();
        }
        transport->abort(error.what());
      }
    });
  }
  for (auto& thread : threads) thread.join();
  if (first_error) std::rethrow_exception(first_error);
}

}  // namespace sluice
