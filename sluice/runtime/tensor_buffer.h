// tensor_buffer.h - tensors as a transport sees them. Read next: messages.h.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <utility>

#include "sluice/comm/transport.h"
#include "sluice/common/errors.h"

namespace sluice {

/// The bytes of a tensor, which the buffer keeps alive. REQUIRES: defined; contiguous where the
/// transport copies.
inline Buffer buffer_of(at::Tensor tensor) {
  SLUICE_CHECK(tensor.defined(), "there is no tensor to hand over");
  auto owner = std::make_shared<at::Tensor>(std::move(tensor));
  return {owner, static_cast<std::byte*>(owner->data_ptr()), owner->nbytes()};
}

/// The tensor that buffer_of() was given: on this rank, or the sender's own where nothing copies.
inline at::Tensor& tensor_in(const Buffer& buffer) {
  return *static_cast<at::Tensor*>(buffer.owner.get());
}

}  // namespace sluice
