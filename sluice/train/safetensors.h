// safetensors.h - strict reading and writing of safetensors files: the container of checkpoints and
// of Hugging Face weights. Free of torch. Read next: tensor_files.h, checkpoint.h.
//
// File: u64 header size N, N bytes of JSON, the tensors' bytes back to back. Little-endian.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "sluice/train/files.h"

namespace sluice {

/// Element types of the format that take whole bytes; the names are those of the header.
enum class ElementType : std::uint8_t {
  kBool,
  kU8,
  kI8,
  kF8E5M2,
  kF8E4M3,
  kF8E8M0,
  kI16,
  kU16,
  kF16,
  kBF16,
  kI32,
  kU32,
  kF32,
  kC64,
  kF64,
  kI64,
  kU64,
};

/// "BOOL", "U8", ..., "BF16", "F32", ...
std::string_view to_string(ElementType type);
std::int64_t num_bytes_of(ElementType type);

/// A tensor on its way into a file. `bytes` are row-major; `owner`, when set, keeps them alive.
struct NamedBytes {
  std::string name;
  ElementType type = ElementType::kF32;
  std::vector<std::int64_t> shape;
  std::span<const std::byte> bytes;
  std::shared_ptr<const void> owner = nullptr;
};

/// A tensor in a file: bytes [begin, end) of the data part.
struct TensorEntry {
  std::string name;
  ElementType type = ElementType::kF32;
  std::vector<std::int64_t> shape;
  std::int64_t begin = 0;
  std::int64_t end = 0;

  friend bool operator==(const TensorEntry&, const TensorEntry&) = default;
};

struct SafetensorsHeader {
  std::vector<TensorEntry> tensors;  // in the order of their bytes
  std::map<std::string, std::string> metadata;
  std::int64_t data_offset = 0;  // of the data part in the file
};

/// Checks a whole file's bytes and returns its header. `origin` names the file in errors.
/// Refused: a header that is not exactly the format's JSON, duplicate names, unknown element types,
/// sizes that do not match shapes, holes, overlaps, and bytes missing or left over at the end.
/// Throws: Failure.
SafetensorsHeader parse_safetensors(std::span<const std::byte> file, const std::string& origin);

/// A mapped safetensors file. Threads: any.
class SafetensorsFile {
 public:
  /// Throws: Failure when the file cannot be read or is damaged.
  explicit SafetensorsFile(const std::filesystem::path& path);

  const SafetensorsHeader& header() const { return header_; }
  /// Null when there is no such tensor.
  const TensorEntry* find(std::string_view name) const;
  /// Valid as long as this object; not aligned.
  std::span<const std::byte> bytes(const TensorEntry& entry) const;
  const std::filesystem::path& path() const { return file_.path(); }

 private:
  MappedFile file_;
  SafetensorsHeader header_;
  std::map<std::string, std::size_t, std::less<>> index_;
};

/// Writes the tensors in the format's order: wide element types first, then by name. The header has
/// "format": "pt" beside `metadata`, which loaders of Hugging Face ask for.
/// REQUIRES: names are unique, every shape matches its bytes. The caller closes `out`.
void write_safetensors(FileWriter& out, std::vector<NamedBytes> tensors,
                       const std::map<std::string, std::string>& metadata = {});

}  // namespace sluice
