#include "sluice/train/text_files.h"

#include <fnmatch.h>

#include <algorithm>
#include <utility>

#include "sluice/common/errors.h"
#include "sluice/train/files.h"
#include "sluice/train/hash64.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;

// Files up to this size are copied, since every mapping costs the system a table entry; longer ones
// are mapped, so that they need no memory of their own.
constexpr std::int64_t kLargestCopy = 1 << 20;

bool matches(const std::string& pattern, const fs::path& relative) {
  if (::fnmatch(pattern.c_str(), relative.c_str(), 0) == 0) return true;
  return std::any_of(relative.begin(), relative.end(), [&pattern](const fs::path& part) {
    return ::fnmatch(pattern.c_str(), part.c_str(), 0) == 0;
  });
}

bool matches_any(const std::vector<std::string>& patterns, const fs::path& relative) {
  return std::any_of(patterns.begin(), patterns.end(), [&relative](const std::string& pattern) {
    return matches(pattern, relative);
  });
}

/// Relative paths of the files below `folder` that are wanted, sorted.
std::vector<fs::path> list_folder(const fs::path& folder, const DataConfig& config) {
  std::vector<fs::path> files;
  std::error_code error;
  fs::recursive_directory_iterator walk(folder, error);
  for (; !error && walk != fs::recursive_directory_iterator(); walk.increment(error)) {
    const fs::path relative = walk->path().lexically_relative(folder);
    const bool hidden = walk->path().filename().string().starts_with('.');
    if (hidden || matches_any(config.ignore, relative)) {
      walk.disable_recursion_pending();
      continue;
    }
    std::error_code type_error;  // a link to nothing is no file
    if (!walk->is_regular_file(type_error)) continue;
    if (config.include.empty() || matches_any(config.include, relative)) files.push_back(relative);
  }
  if (error) {
    throw Failure(fmt::format("cannot read folder {}: {}; leave it out with data.ignore",
                              folder.string(), error.message()));
  }
  std::sort(files.begin(), files.end());
  return files;
}

/// Bytes of many small files end to end, in blocks that stay where they are.
class SmallFiles {
 public:
  /// Copies `bytes` and the separator.
  TokenSegment add(std::span<const std::byte> bytes) {
    constexpr std::size_t kBlock = std::size_t{16} << 20;
    if (block_ == nullptr || block_->size() + bytes.size() + 1 > block_->capacity()) {
      block_ = std::make_shared<std::vector<std::byte>>();
      block_->reserve(std::max(kBlock, bytes.size() + 1));
    }
    const std::size_t begin = block_->size();
    block_->insert(block_->end(), bytes.begin(), bytes.end());
    block_->push_back(kDocumentSeparator);
    return {.owner = block_,
            .data = block_->data() + begin,
            .type = TokenType::kU8,
            .count = static_cast<std::int64_t>(bytes.size()) + 1,
            .path = {},
            .file_offset = 0};
  }

 private:
  std::shared_ptr<std::vector<std::byte>> block_;
};

bool is_binary(std::span<const std::byte> bytes) {
  // As far as grep and git look, so that a large corpus is not read twice.
  constexpr std::size_t kProbe = std::size_t{64} << 10;
  const auto probe = bytes.first(std::min(kProbe, bytes.size()));
  return std::find(probe.begin(), probe.end(), std::byte{0}) != probe.end();
}

class Reader {
 public:
  explicit Reader(TextDocuments& result) : result_(result) {}

  /// Adds the file. Returns false, adding nothing, when it is binary.
  bool add(const fs::path& path, const std::string& relative) {
    const auto file = std::make_shared<const MappedFile>(path);
    const auto bytes = file->bytes();
    if (is_binary(bytes)) return false;
    if (bytes.empty()) return true;
    std::vector<TokenSegment> segments;
    if (static_cast<std::int64_t>(bytes.size()) <= kLargestCopy) {
      segments = {small_.add(bytes)};
    } else {
      TokenSegment mapped{.owner = file,
                          .data = bytes.data(),
                          .type = TokenType::kU8,
                          .count = static_cast<std::int64_t>(bytes.size()),
                          .path = {},
                          .file_offset = 0};
      segments = {std::move(mapped), small_.add({})};
    }
    for (TokenSegment& segment : segments) segment.path = path.string();
    result_.documents.push_back({relative, std::move(segments)});
    return true;
  }

 private:
  TextDocuments& result_;
  SmallFiles small_;
};

}  // namespace

TextDocuments read_text_documents(const std::vector<fs::path>& paths, const DataConfig& config) {
  TextDocuments result;
  Reader reader(result);
  for (const fs::path& path : paths) {
    if (!fs::is_directory(path)) {
      if (!reader.add(path, path.filename().string())) {
        throw InvalidArgument(fmt::format(
            "data.paths: {} is not text (it has zero bytes); token files end in .bin, or "
            "set data.format",
            path.string()));
      }
      continue;
    }
    for (const fs::path& relative : list_folder(path, config)) {
      if (!reader.add(path / relative, relative.generic_string())) ++result.num_binary;
    }
  }
  return result;
}

bool is_validation_document(const std::string& relative_path, double validation_fraction) {
  // 53 bits of the hash as a number in [0, 1).
  const double place = static_cast<double>(hash64(relative_path) >> 11) * 0x1p-53;
  return place < validation_fraction;
}

}  // namespace sluice
