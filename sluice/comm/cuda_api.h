// cuda_api.h - the few functions of CUDA's runtime that order messages and passes on a GPU, looked
// up at run time. Read next: nccl.h.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

namespace sluice {

/// CUDA's functions under their own names without the prefix. Streams and events are cudaStream_t
/// and cudaEvent_t.
struct CudaApi {
  int (*set_device)(int device) = nullptr;
  int (*get_device_count)(int* count) = nullptr;
  int (*device_get_pci_bus_id)(char* text, int length, int device) = nullptr;
  int (*stream_create_with_flags)(void** stream, unsigned flags) = nullptr;
  int (*stream_destroy)(void* stream) = nullptr;
  int (*stream_wait_event)(void* stream, void* event, unsigned flags) = nullptr;
  int (*event_create_with_flags)(void** event, unsigned flags) = nullptr;
  int (*event_destroy)(void* event) = nullptr;
  int (*event_record)(void* event, void* stream) = nullptr;
  int (*event_query)(void* event) = nullptr;
  int (*host_alloc)(void** data, std::size_t num_bytes, unsigned flags) = nullptr;
  int (*free_host)(void* data) = nullptr;
  const char* (*get_error_string)(int error) = nullptr;

  /// Throws: CommError naming the call unless `error` is cudaSuccess.
  void check(int error, const char* call) const;

  int num_devices() const;
  /// "0000:3b:00.0": what tells the GPUs of a machine apart, whatever numbers a process sees.
  std::string bus_id(int device) const;
  void use_device(int device) const;
  /// A stream that does not wait for the default stream, nor that one for it.
  void* make_stream() const;
  /// An event without a time.
  void* make_event() const;
  /// Whether the work before the event's last record is done.
  bool is_done(void* event) const;
};

/// Finds CUDA's runtime: in `name`, or with an empty one in $SLUICE_CUDART_LIBRARY, or in this
/// process, where a torch with CUDA has brought it.
/// Throws: InvalidArgument in one line when it is not there.
std::shared_ptr<const CudaApi> load_cuda(const std::string& name = "");

}  // namespace sluice
