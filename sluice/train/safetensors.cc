#include "sluice/train/safetensors.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "sluice/common/errors.h"
#include "sluice/train/safetensors_header.h"

namespace sluice {
namespace {

struct TypeInfo {
  std::string_view name;
  std::int64_t num_bytes;
};

// In the order of ElementType.
constexpr TypeInfo kTypes[] = {
    {"BOOL", 1}, {"U8", 1},  {"I8", 1},  {"F8_E5M2", 1}, {"F8_E4M3", 1}, {"F8_E8M0", 1},
    {"I16", 2},  {"U16", 2}, {"F16", 2}, {"BF16", 2},    {"I32", 4},     {"U32", 4},
    {"F32", 4},  {"C64", 8}, {"F64", 8}, {"I64", 8},     {"U64", 8},
};

constexpr std::int64_t kLargestHeader = 100'000'000;

[[noreturn]] void damaged(const std::string& origin, const std::string& what) {
  throw Failure(fmt::format("{} is damaged: {}; fetch or write it again", origin, what));
}

/// Bytes of a tensor, or -1 when they do not fit 63 bits.
std::int64_t num_bytes_of(ElementType type, const std::vector<std::int64_t>& shape) {
  std::int64_t bytes = num_bytes_of(type);
  // A zero anywhere makes the product zero, however large the others are.
  if (std::find(shape.begin(), shape.end(), 0) != shape.end()) return 0;
  for (const std::int64_t size : shape) {
    if (size > std::numeric_limits<std::int64_t>::max() / bytes) return -1;
    bytes *= size;
  }
  return bytes;
}

/// The header's JSON, without its padding.
std::string_view header_text(std::span<const std::byte> file, const std::string& origin) {
  constexpr std::size_t kPrefix = sizeof(std::uint64_t);
  if (file.size() < kPrefix) damaged(origin, "it ends inside the header size");
  const auto num_bytes = load_at<std::uint64_t>(file, 0);
  if (num_bytes > static_cast<std::uint64_t>(kLargestHeader)) {
    damaged(origin,
            fmt::format("a header of {} bytes, at most {} are allowed", num_bytes, kLargestHeader));
  }
  if (num_bytes > file.size() - kPrefix) {
    damaged(origin, fmt::format("a header of {} bytes in a file of {}", num_bytes, file.size()));
  }
  std::string_view text(reinterpret_cast<const char*>(file.data()) + kPrefix,
                        static_cast<std::size_t>(num_bytes));
  while (!text.empty() && text.back() == ' ') text.remove_suffix(1);
  if (text.empty() || text.front() != '{' || text.back() != '}') {
    damaged(origin, "the header is not a JSON object");
  }
  return text;
}

void check_sizes(const TensorEntry& entry, const std::string& origin) {
  const std::int64_t expected = num_bytes_of(entry.type, entry.shape);
  if (entry.begin > entry.end || entry.end - entry.begin != expected) {
    damaged(origin, fmt::format("{} has bytes {} to {}, its shape [{}] of {} does not",
                                printable(entry.name), entry.begin, entry.end,
                                fmt::join(entry.shape, ", "), to_string(entry.type)));
  }
}

}  // namespace

std::string_view to_string(ElementType type) { return kTypes[static_cast<std::size_t>(type)].name; }

std::int64_t num_bytes_of(ElementType type) {
  return kTypes[static_cast<std::size_t>(type)].num_bytes;
}

SafetensorsHeader parse_safetensors(std::span<const std::byte> file, const std::string& origin) {
  const std::string_view text = header_text(file, origin);
  RawHeader raw = parse_header_json(text, origin);

  SafetensorsHeader header;
  header.metadata = std::move(raw.metadata);
  header.data_offset =
      static_cast<std::int64_t>(sizeof(std::uint64_t) + load_at<std::uint64_t>(file, 0));
  for (RawTensor& tensor : raw.tensors) {
    const auto* type =
        std::find_if(std::begin(kTypes), std::end(kTypes),
                     [&](const TypeInfo& info) { return info.name == tensor.dtype; });
    if (type == std::end(kTypes)) {
      damaged(origin, fmt::format("{} has the unknown dtype {}", printable(tensor.name),
                                  printable(tensor.dtype)));
    }
    header.tensors.push_back({.name = std::move(tensor.name),
                              .type = static_cast<ElementType>(type - std::begin(kTypes)),
                              .shape = std::move(tensor.shape),
                              .begin = tensor.offsets[0],
                              .end = tensor.offsets[1]});
    check_sizes(header.tensors.back(), origin);
  }
  // Empty tensors take the place before the tensor that begins where they are.
  std::sort(header.tensors.begin(), header.tensors.end(), [](const auto& a, const auto& b) {
    return std::tie(a.begin, a.end, a.name) < std::tie(b.begin, b.end, b.name);
  });
  std::int64_t position = 0;
  for (const TensorEntry& entry : header.tensors) {
    if (entry.begin != position) {
      damaged(origin, fmt::format("{} begins at byte {}, the tensor before it ends at {}",
                                  printable(entry.name), entry.begin, position));
    }
    position = entry.end;
  }
  const std::int64_t available = static_cast<std::int64_t>(file.size()) - header.data_offset;
  if (position != available) {
    damaged(origin, fmt::format("its tensors take {} bytes, the file has {}", position, available));
  }
  return header;
}

SafetensorsFile::SafetensorsFile(const std::filesystem::path& path)
    : file_(path), header_(parse_safetensors(file_.bytes(), path.string())) {
  for (std::size_t i = 0; i < header_.tensors.size(); ++i) {
    index_.emplace(header_.tensors[i].name, i);
  }
}

const TensorEntry* SafetensorsFile::find(std::string_view name) const {
  const auto found = index_.find(name);
  return found == index_.end() ? nullptr : &header_.tensors[found->second];
}

std::span<const std::byte> SafetensorsFile::bytes(const TensorEntry& entry) const {
  return file_.bytes().subspan(static_cast<std::size_t>(header_.data_offset + entry.begin),
                               static_cast<std::size_t>(entry.end - entry.begin));
}

void write_safetensors(FileWriter& out, std::vector<NamedBytes> tensors,
                       const std::map<std::string, std::string>& metadata) {
  std::sort(tensors.begin(), tensors.end(), [](const NamedBytes& a, const NamedBytes& b) {
    const std::int64_t width_a = num_bytes_of(a.type), width_b = num_bytes_of(b.type);
    return width_a != width_b ? width_a > width_b : a.name < b.name;
  });
  nlohmann::ordered_json header;
  header["__metadata__"] = metadata;
  header["__metadata__"]["format"] = "pt";
  std::int64_t position = 0;
  for (const NamedBytes& tensor : tensors) {
    SLUICE_CHECK(!header.contains(tensor.name), "two tensors are called {}", tensor.name);
    const auto size = static_cast<std::int64_t>(tensor.bytes.size());
    SLUICE_CHECK(size == num_bytes_of(tensor.type, tensor.shape), "{} has {} bytes", tensor.name,
                 size);
    header[tensor.name] = {{"dtype", to_string(tensor.type)},
                           {"shape", tensor.shape},
                           {"data_offsets", {position, position + size}}};
    position += size;
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');  // data starts aligned to 8 bytes
  const auto num_bytes = static_cast<std::uint64_t>(text.size());
  out.write(std::as_bytes(std::span(&num_bytes, 1)));
  out.write(text);
  for (const NamedBytes& tensor : tensors) out.write(tensor.bytes);
}

}  // namespace sluice
