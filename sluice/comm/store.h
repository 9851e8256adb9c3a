// store.h - the place where processes of a job find each other: keys with values, served to all.
// Read next: store_job.h, runtime/tcp_store.h (torch's TCPStore).
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

namespace sluice {

/// One connection to the store. Values may hold any bytes, also megabytes. Threads: one per
/// connection. Every call throws CommError when the store does not answer any more.
class Store {
 public:
  virtual ~Store() = default;

  virtual void set(const std::string& key, const std::string& value) = 0;

  /// The value, as soon as there is one; nothing when `limit` passes first.
  virtual std::optional<std::string> get(const std::string& key,
                                         std::chrono::milliseconds limit) = 0;

  virtual bool has(const std::string& key) = 0;

  /// Adds to a counter that begins at 0 and returns its new value.
  virtual std::int64_t add(const std::string& key, std::int64_t amount) = 0;

  virtual void erase(const std::string& key) = 0;

  /// A connection of its own to the same store, for another thread.
  virtual std::unique_ptr<Store> another() = 0;
};

}  // namespace sluice
