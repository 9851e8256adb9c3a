#include "sluice/runtime/copy_stream.h"

#include <ATen/ops/empty.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "sluice/runtime/device.h"

namespace sluice {
namespace {

bool on_device(const std::vector<at::Tensor*>& tensors) {
  return !tensors.empty() && !tensors.front()->device().is_cpu();
}

// One part for each tensor, in the staging buffer or in the tensor itself.
Parts split(const std::vector<at::Tensor*>& tensors, std::byte* staging) {
  Parts parts;
  for (const at::Tensor* tensor : tensors) {
    std::byte* data = staging != nullptr ? staging : static_cast<std::byte*>(tensor->data_ptr());
    parts.emplace_back(data, tensor->nbytes());
    if (staging != nullptr) staging += tensor->nbytes();
  }
  return parts;
}

}  // namespace

ConstParts CopyStream::bring_to_host(const std::vector<at::Tensor*>& tensors) {
  const Parts parts = host_side(tensors);
  if (on_device(tensors)) copy(tensors, /*to_host=*/true);
  return {parts.begin(), parts.end()};
}

Parts CopyStream::host_side(const std::vector<at::Tensor*>& tensors) {
  if (!on_device(tensors)) return split(tensors, nullptr);
  use_device(tensors.front()->device());  // page-locked memory is set up for one
  std::int64_t total = 0;
  for (const at::Tensor* tensor : tensors) total += static_cast<std::int64_t>(tensor->nbytes());
  if (!staging_.defined() || staging_.numel() < total) {
    staging_ = at::empty({total}, at::TensorOptions(at::kByte).pinned_memory(true));
  }
  return split(tensors, static_cast<std::byte*>(staging_.data_ptr()));
}

void CopyStream::take_to_device(const std::vector<at::Tensor*>& tensors) {
  if (on_device(tensors)) copy(tensors, /*to_host=*/false);
}

void CopyStream::copy(const std::vector<at::Tensor*>& tensors, bool to_host) {
  const c10::Device device = tensors.front()->device();
  const c10::impl::VirtualGuardImpl devices(device.type());
  if (!stream_) stream_ = devices.getStreamFromGlobalPool(device);
  if (!to_host) {
    // The room may have been that of a tensor whose last reader still runs: the allocator goes by
    // the order of the compute stream.
    c10::Event free(device.type());
    free.record(devices.getStream(device));
    free.block(*stream_);
  }
  {
    const c10::StreamGuard guard(*stream_);
    std::int64_t at = 0;
    for (at::Tensor* tensor : tensors) {
      const auto num_bytes = static_cast<std::int64_t>(tensor->nbytes());
      const at::Tensor bytes = tensor->view(at::kByte).view({num_bytes});
      at::Tensor staged = staging_.narrow(0, at, num_bytes);
      to_host ? staged.copy_(bytes, /*non_blocking=*/true)
              : bytes.copy_(staged, /*non_blocking=*/true);
      at += num_bytes;
    }
  }
  devices.synchronizeStream(*stream_);
}

}  // namespace sluice
