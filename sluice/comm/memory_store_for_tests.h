// memory_store_for_tests.h - a Store inside one process, for ranks that are threads.
#pragma once

#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>

#include "sluice/comm/store.h"
#include "sluice/common/errors.h"

namespace sluice {

/// Connections made by another() share one map.
class MemoryStore final : public Store {
 public:
  MemoryStore() : map_(std::make_shared<Map>()) {}

  void set(const std::string& key, const std::string& value) override {
    {
      const std::lock_guard lock(map_->mutex);
      check();
      map_->values[key] = value;
    }
    map_->changed.notify_all();
  }
  std::optional<std::string> get(const std::string& key, std::chrono::milliseconds limit) override {
    std::unique_lock lock(map_->mutex);
    check();
    if (!map_->changed.wait_for(lock, limit, [&] { return map_->values.contains(key); })) {
      return std::nullopt;
    }
    return map_->values.at(key);
  }
  bool has(const std::string& key) override {
    const std::lock_guard lock(map_->mutex);
    check();
    return map_->values.contains(key);
  }
  std::int64_t add(const std::string& key, std::int64_t amount) override {
    const std::lock_guard lock(map_->mutex);
    return map_->counters[key] += amount;
  }
  void erase(const std::string& key) override {
    const std::lock_guard lock(map_->mutex);
    map_->values.erase(key);
  }
  std::unique_ptr<Store> another() override {
    return std::unique_ptr<Store>(new MemoryStore(map_));
  }

  std::size_t num_values() const {
    const std::lock_guard lock(map_->mutex);
    return map_->values.size();
  }
  /// From now on nothing answers.
  void shut_down() {
    const std::lock_guard lock(map_->mutex);
    map_->down = true;
  }

 private:
  struct Map {
    std::mutex mutex;
    std::condition_variable changed;
    std::map<std::string, std::string> values;
    std::map<std::string, std::int64_t> counters;
    bool down = false;
  };
  explicit MemoryStore(std::shared_ptr<Map> map) : map_(std::move(map)) {}
  void check() const {
    if (map_->down) throw CommError("the store does not answer");
  }

  std::shared_ptr<Map> map_;
};

}  // namespace sluice
