#include "sluice/train/tensor_messages.h"

#include "sluice/common/errors.h"
#include "sluice/runtime/tensor_buffer.h"

namespace sluice {

Transport::Ticket post_tensor(Transport& transport, int peer, const MessageTag& tag,
                              const at::Tensor& tensor) {
  SLUICE_CHECK(tensor.is_contiguous());
  return transport.post_send(peer, tag, buffer_of(tensor));
}

Transport::Ticket post_tensor_receive(Transport& transport, int peer, const MessageTag& tag,
                                      const at::Tensor& room) {
  SLUICE_CHECK(!transport.copies() || room.is_contiguous());
  return transport.post_receive(peer, tag, transport.copies() ? buffer_of(room) : Buffer{});
}

at::Tensor wait_tensor(Transport& transport, Transport::Ticket ticket) {
  return tensor_in(transport.wait_receive(ticket));
}

}  // namespace sluice
