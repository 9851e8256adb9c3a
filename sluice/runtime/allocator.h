// allocator.h - the CPU allocator that charges every tensor to a rank's ledger.
// Read next: engine.h.
#pragma once

#include <ATen/core/Tensor.h>

#include "sluice/runtime/ledger.h"

namespace sluice {

/// Replaces torch's CPU allocator by one that aligns every block to 64 bytes and charges it to the
/// ledger and class that the allocating thread has set. Blocks allocated while no ledger is set are
/// not counted. Call once before tensors are made; later calls do nothing.
/// Threads: not thread-safe against allocations; call at program start.
void install_ledger_allocator();

/// While alive, allocations of this thread are charged to `ledger` as `memory_class`; restores what
/// was set before. `ledger` null: not counted.
class LedgerScope {
 public:
  LedgerScope(MemoryLedger* ledger, MemoryClass memory_class);
  ~LedgerScope();
  LedgerScope(const LedgerScope&) = delete;
  LedgerScope& operator=(const LedgerScope&) = delete;

 private:
  MemoryLedger* previous_ledger_;
  MemoryClass previous_class_;
};

/// Moves the storage of `tensor` to another ledger and class. Does nothing for undefined tensors
/// and for storage that the ledger allocator did not make (other devices, from_blob). Threads: the
/// tensor belongs to the calling thread.
void charge_to(const at::Tensor& tensor, MemoryLedger* ledger, MemoryClass memory_class);

}  // namespace sluice
