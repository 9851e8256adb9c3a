// nccl.h - ranks as processes with a GPU each: NCCL moves device memory, a store carries the rest.
// Read next: store_job.h, nccl_api.h.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "sluice/comm/cuda_api.h"
#include "sluice/comm/nccl_api.h"
#include "sluice/comm/store.h"
#include "sluice/comm/transport.h"

namespace sluice {

/// The libraries and the GPU of this rank.
struct NcclDevice {
  std::shared_ptr<const NcclApi> nccl;
  std::shared_ptr<const CudaApi> cuda;
  int index = 0;  // of the GPU, as this process counts
  /// What tells this GPU from all others of the job: its machine and its place there.
  std::string name;
};

struct NcclOptions {
  int rank = 0;
  int size = 1;
  std::string prefix;  // of the keys in the store; the same on all ranks, never used twice
  std::chrono::milliseconds timeout{60000};  // of every wait
  /// Called on a helper thread when the job is lost, or a call of a library does not return within
  /// the time limit, and this rank has not noticed for half a second. Gets the line to print; may
  /// end the process.
  std::function<void(const std::string& report)> last_word;
};

/// A transport to all ranks that meet in `store`. Collectives go through the store and need no GPU;
/// messages need open() first, and a `device`.
///
/// Every channel has a communicator of its own, of its two ranks, and a stream of its own on each
/// end: a lane. A posted message starts on its lane when all that the default stream was given
/// before is done, so that posting waits for nothing (up to the thousand or so operations that a
/// stream holds); wait_receive() and wait_send() wait on the
/// host, within the time limit. Ahead of the bytes, in the same group of calls, go 16 bytes that
/// name the message, so that two ends that disagree are found out. Channels are opened one by one
/// in one order on all ranks, each with a first message: NCCL connects two ranks at their first
/// message, and would wait for the peer inside the post.
///
/// A peer that died on this machine, an error of NCCL, and a passed time limit abort all
/// communicators. Receives need a destination. Throws: CommError.
std::unique_ptr<Transport> connect_nccl(std::unique_ptr<Store> store, const NcclOptions& options,
                                        const NcclDevice& device = {});

/// Demands a GPU of its own for every rank. All ranks call it together; `name` is
/// NcclDevice::name. Throws: InvalidArgument on all ranks alike, naming two ranks and their GPU.
void check_devices(Transport& world, const std::string& name);

/// A name for GPU `index`, from this machine's boot and the GPU's place on its bus.
std::string device_name(const CudaApi& cuda, int index);

}  // namespace sluice
