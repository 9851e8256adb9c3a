// text_files.h - folders and files of text as documents of bytes. Free of torch. Read next:
// tokens.h.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "sluice/train/config.h"
#include "sluice/train/tokens.h"

namespace sluice {

/// Byte after each document. A file with one in its first 64 KiB is taken for binary.
inline constexpr std::byte kDocumentSeparator{0};

/// One text file: its bytes and the separator.
struct TextDocument {
  std::string relative_path;  // below the folder that was named; the file's name for a file
  std::vector<TokenSegment> segments;
};

struct TextDocuments {
  std::vector<TextDocument> documents;  // in the order of the paths, sorted within each folder
  std::int64_t num_binary = 0;          // files of folders that were passed over as binary
};

/// Reads the named files and all files below the named folders. Hidden ones, those that match a
/// pattern of config.ignore and, when config.include is not empty, those that match none of it are
/// left out of folders; empty ones too.
/// Patterns are those of a shell and match the relative path or any one part of it.
/// Throws: InvalidArgument for a named file that is binary, Failure for a file that cannot be read.
TextDocuments read_text_documents(const std::vector<std::filesystem::path>& paths,
                                  const DataConfig& config);

/// Whether a document of a text set belongs to validation: a function of its path alone, so that
/// adding files moves none.
bool is_validation_document(const std::string& relative_path, double validation_fraction);

}  // namespace sluice
