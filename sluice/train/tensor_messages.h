// tensor_messages.h - whole tensors between ranks, outside a Program. Read next: data_parallel.h.
#pragma once

#include <ATen/core/Tensor.h>

#include "sluice/comm/transport.h"

namespace sluice {

/// Posts a tensor to `peer`; it must be contiguous and must not change until the send is over.
Transport::Ticket post_tensor(Transport& transport, int peer, const MessageTag& tag,
                              const at::Tensor& tensor);

/// Announces a tensor from `peer`. Where the transport copies, the bytes go into `room`.
Transport::Ticket post_tensor_receive(Transport& transport, int peer, const MessageTag& tag,
                                      const at::Tensor& room);

/// Waits for it: `room`, or the sender's own tensor, which is not to be changed.
at::Tensor wait_tensor(Transport& transport, Transport::Ticket ticket);

}  // namespace sluice
