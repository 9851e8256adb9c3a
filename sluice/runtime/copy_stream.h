// copy_stream.h - device tensors as host bytes, on a stream of its own. Used by ActivationStore.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <vector>

#include "sluice/runtime/far_store.h"

namespace sluice {

/// On a CPU the tensors' own memory; on a GPU a page-locked staging buffer of the size of the
/// largest activation, filled and emptied on a stream beside the compute stream.
/// Threads: one. The parts are valid until the next call.
class CopyStream {
 public:
  /// The bytes of `tensors`, which must be complete.
  ConstParts bring_to_host(const std::vector<at::Tensor*>& tensors);
  /// Where to write the bytes of `tensors`; take_to_device() then puts them there.
  Parts host_side(const std::vector<at::Tensor*>& tensors);
  void take_to_device(const std::vector<at::Tensor*>& tensors);

 private:
  void copy(const std::vector<at::Tensor*>& tensors, bool to_host);

  at::Tensor staging_;
  std::optional<c10::Stream> stream_;
};

}  // namespace sluice
