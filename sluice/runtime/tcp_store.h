// tcp_store.h - torch's TCPStore as a Store: where the processes of torchrun find each other.
// Read next: comm/store_job.h.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "sluice/comm/store.h"

namespace sluice {

struct TcpStoreAddress {
  std::string host;
  std::uint16_t port = 0;
  /// This process serves the store to the others; the first one of the job does, unless its
  /// launcher serves one already.
  bool serve = false;
};

/// Connects to the store, which may still have to begin, for up to `limit`. Values above a megabyte
/// are cut into pieces: the server refuses large ones. The served store ends with the object.
/// Throws: CommError naming the address when nothing answers there, or its port is taken.
std::unique_ptr<Store> connect_tcp_store(const TcpStoreAddress& address,
                                         std::chrono::milliseconds limit);

}  // namespace sluice
