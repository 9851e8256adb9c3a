#include "sluice/train/tensor_messages.h"

#include <memory>
#include <utility>

#include "sluice/common/errors.h"

namespace sluice {
namespace {

Buffer buffer_of(const at::Tensor& tensor) {
  SLUICE_CHECK(tensor.is_contiguous());
  Buffer buffer;
  buffer.data = static_cast<std::byte*>(tensor.data_ptr());
  buffer.num_bytes = tensor.nbytes();
  buffer.owner = std::make_shared<at::Tensor>(tensor);
  return buffer;
}

}  // namespace

Transport::Ticket post_tensor(Transport& transport, int peer, const MessageTag& tag,
                              const at::Tensor& tensor) {
  return transport.post_send(peer, tag, buffer_of(tensor));
}

Transport::Ticket post_tensor_receive(Transport& transport, int peer, const MessageTag& tag,
                                      const at::Tensor& room) {
  return transport.post_receive(peer, tag, transport.copies() ? buffer_of(room) : Buffer{});
}

at::Tensor wait_tensor(Transport& transport, Transport::Ticket ticket) {
  const Buffer buffer = transport.wait_receive(ticket);
  return *static_cast<at::Tensor*>(buffer.owner.get());
}

}  // namespace sluice
