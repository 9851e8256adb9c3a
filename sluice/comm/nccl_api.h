// nccl_api.h - the part of NCCL's stable C interface that is used, declared here so that neither
// NCCL nor CUDA is needed to build. Read next: cuda_api.h, nccl.h.
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <string>

namespace sluice {

/// ncclUniqueId: 128 bytes that two ranks must have in common to find each other.
struct NcclUniqueId {
  std::array<char, 128> bytes;
};

/// ncclComm_t.
using NcclComm = struct NcclCommOpaque*;

/// ncclResult_t.
enum NcclResult : int { kNcclSuccess = 0, kNcclInProgress = 7 };

/// ncclDataType_t; bytes are all that travels.
inline constexpr int kNcclInt8 = 0;

/// NCCL's functions under their own names without the prefix. A stream is a cudaStream_t.
struct NcclApi {
  int (*get_version)(int* version) = nullptr;
  int (*get_unique_id)(NcclUniqueId* id) = nullptr;
  int (*comm_init_rank)(NcclComm* comm, int num_ranks, NcclUniqueId id, int rank) = nullptr;
  int (*comm_destroy)(NcclComm comm) = nullptr;
  int (*comm_abort)(NcclComm comm) = nullptr;
  int (*comm_get_async_error)(NcclComm comm, int* error) = nullptr;
  const char* (*get_error_string)(int result) = nullptr;
  int (*group_start)() = nullptr;
  int (*group_end)() = nullptr;
  int (*send)(const void* data, std::size_t count, int type, int peer, NcclComm comm,
              void* stream) = nullptr;
  int (*recv)(void* data, std::size_t count, int type, int peer, NcclComm comm,
              void* stream) = nullptr;
  /// The library says that it moves host memory: a stand-in for machines without a GPU.
  bool moves_host_memory = false;

  /// Throws: CommError naming the call unless `result` is success.
  void check(int result, const char* call) const;
  /// "2.27.3".
  std::string version() const;
};

/// Loads NCCL: `name`, or with an empty one $SLUICE_NCCL_LIBRARY, or libnccl.so.2.
/// Throws: InvalidArgument in one line when it is not there or lacks a function.
std::shared_ptr<const NcclApi> load_nccl(const std::string& name = "");

}  // namespace sluice
