#include "sluice/runtime/allocator.h"

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>

#include <cstdlib>
#include <new>

#include "sluice/common/errors.h"
#include "sluice/runtime/block_cache.h"

namespace sluice {
namespace {

// Larger blocks come from the cache; glibc is as quick for smaller ones and wastes little of them.
constexpr std::size_t kSmallestCached = std::size_t{256} << 10;
constexpr std::size_t kAlignment = 64;  // GEMM results may depend on the address modulo a line

/// Stands in the 64 bytes before every block.
struct alignas(kAlignment) BlockHeader {
  MemoryLedger* ledger;
  std::int64_t num_bytes;
  MemoryClass memory_class;
};
static_assert(sizeof(BlockHeader) == kAlignment);

struct Owner {
  MemoryLedger* ledger = nullptr;
  MemoryClass memory_class = MemoryClass::kWorkspace;
};
thread_local Owner current_owner;

BlockHeader* header_of(void* data) { return static_cast<BlockHeader*>(data) - 1; }

std::size_t size_with_header(std::int64_t num_bytes) {
  const std::size_t size = static_cast<std::size_t>(num_bytes) + sizeof(BlockHeader);
  return (size + kAlignment - 1) / kAlignment * kAlignment;
}

// Of the process, as torch's allocator is; never destroyed, since tensors may outlive anything.
BlockCache& large_blocks() {
  static auto* const cache = new BlockCache;
  return *cache;
}

void free_block(void* data) {
  if (data == nullptr) return;
  BlockHeader* header = header_of(data);
  if (header->ledger != nullptr) header->ledger->charge(header->memory_class, -header->num_bytes);
  const std::size_t size = size_with_header(header->num_bytes);
  if (size >= kSmallestCached) {
    large_blocks().free(header, size);
  } else {
    std::free(header);
  }
}

class LedgerAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t num_bytes) override {
    const c10::Device cpu(c10::DeviceType::CPU);
    if (num_bytes == 0) return {nullptr, nullptr, &free_block, cpu};
    const Owner owner = current_owner;
    const auto charged = static_cast<std::int64_t>(num_bytes);
    if (owner.ledger != nullptr) owner.ledger->charge(owner.memory_class, charged);
    const std::size_t size = size_with_header(charged);
    void* block = size >= kSmallestCached ? large_blocks().allocate(size)
                                          : std::aligned_alloc(kAlignment, size);
    if (block == nullptr) {
      if (owner.ledger != nullptr) owner.ledger->charge(owner.memory_class, -charged);
      throw Failure(fmt::format(
          "out of memory: {} bytes for one tensor were refused; use fewer microbatches in flight "
          "(another pipeline.schedule), model.recompute, or a smaller model",
          num_bytes));
    }
    auto* header = new (block) BlockHeader{owner.ledger, charged, owner.memory_class};
    void* data = header + 1;
    return {data, data, &free_block, cpu};
  }

  c10::DeleterFnPtr raw_deleter() const override { return &free_block; }

  void copy_data(void* destination, const void* source, std::size_t num_bytes) const override {
    default_copy_data(destination, source, num_bytes);
  }
};

}  // namespace

void install_ledger_allocator() {
  // Torch keeps the pointer for ever, so the allocator is never destroyed.
  static LedgerAllocator* const allocator = [] {
    auto* made = new LedgerAllocator;
    c10::SetCPUAllocator(made, /*priority=*/100);
    return made;
  }();
  SLUICE_CHECK(c10::GetCPUAllocator() == allocator, "another CPU allocator took over");
}

LedgerScope::LedgerScope(MemoryLedger* ledger, MemoryClass memory_class)
    : previous_ledger_(current_owner.ledger), previous_class_(current_owner.memory_class) {
  current_owner = {ledger, memory_class};
}

LedgerScope::~LedgerScope() { current_owner = {previous_ledger_, previous_class_}; }

void charge_to(const at::Tensor& tensor, MemoryLedger* ledger, MemoryClass memory_class) {
  if (!tensor.defined() || !tensor.has_storage()) return;
  const c10::DataPtr& data = tensor.storage().data_ptr();
  if (data.get() == nullptr || data.get_deleter() != &free_block) return;
  BlockHeader* header = header_of(data.get());
  if (header->ledger == ledger) {
    if (ledger != nullptr && header->memory_class != memory_class) {
      ledger->move(header->memory_class, memory_class, header->num_bytes);
    }
  } else {
    if (ledger != nullptr) ledger->charge(memory_class, header->num_bytes);
    if (header->ledger != nullptr) header->ledger->charge(header->memory_class, -header->num_bytes);
  }
  header->ledger = ledger;
  header->memory_class = memory_class;
}

}  // namespace sluice
