#include "sluice/train/token_files.h"

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "sluice/common/errors.h"
#include "sluice/train/files.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void refuse(const std::string& origin, const std::string& what) {
  throw Failure(fmt::format("{}: {}", origin, what));
}

bool file_exists(const fs::path& path) {
  std::error_code error;
  return fs::exists(path, error);
}

fs::path with_suffix(fs::path path, const char* suffix) {
  if (path.extension() == ".bin" || path.extension() == ".idx")
    return path.replace_extension(suffix);
  path += suffix;
  return path;
}

/// Magic numbers of llm.c's files and what they are.
struct Magic {
  std::int32_t number;
  const char* name;
};
constexpr std::int32_t kGpt2Tokens = 20240520;
constexpr std::int32_t kLlama3Tokens = 20240801;
constexpr std::array<Magic, 6> kMagics{{{kGpt2Tokens, "GPT-2 tokens"},
                                        {kLlama3Tokens, "Llama-3 tokens"},
                                        {20240522, "an evaluation set"},
                                        {20240328, "a tokenizer"},
                                        {20240326, "a model"},
                                        {20240527, "an optimizer state"}}};
constexpr std::size_t kLlmCHeaderBytes = 256 * sizeof(std::int32_t);

/// Token type of a Megatron dtype code. Throws: Failure for what cannot be a token.
TokenType megatron_type(std::uint8_t code, const std::string& origin) {
  switch (code) {
    case 1:
      return TokenType::kU8;
    case 2:
      return TokenType::kI8;
    case 3:
      return TokenType::kI16;
    case 4:
      return TokenType::kI32;
    case 5:
      return TokenType::kI64;
    case 8:
      return TokenType::kU16;
    case 6:
    case 7:
      refuse(origin,
             fmt::format("dtype code {} is floating point; tokens are whole numbers", code));
    default:
      refuse(origin, fmt::format("dtype code {} is unknown; known are 1 to 5 and 8", code));
  }
}

/// The fixed part of a Megatron index.
struct MegatronHeader {
  TokenType type;
  std::int64_t num_sequences;
  std::int64_t num_documents;  // entries of the document array
};
constexpr std::size_t kMegatronHeaderBytes = 34;

MegatronHeader parse_megatron_header(std::span<const std::byte> index, const std::string& origin) {
  constexpr std::string_view kMagic("MMIDIDX\0\0", 9);
  if (index.size() < kMegatronHeaderBytes ||
      std::memcmp(index.data(), kMagic.data(), kMagic.size()) != 0) {
    refuse(origin, "is no Megatron index: it does not begin with MMIDIDX");
  }
  const auto version = load_at<std::uint64_t>(index, 9);
  if (version != 1) refuse(origin, fmt::format("has version {}, only 1 is known", version));
  const TokenType type = megatron_type(load_at<std::uint8_t>(index, 17), origin);
  const auto sequences = load_at<std::uint64_t>(index, 18);
  const auto documents = load_at<std::uint64_t>(index, 26);
  // Each sequence takes at least 12 bytes and each document 8: larger counts are damage, and the
  // sums below cannot overflow.
  if (sequences > index.size() / 12 || documents > index.size() / 8) {
    refuse(origin, fmt::format("has {} bytes, too few for {} sequences and {} documents",
                               index.size(), sequences, documents));
  }
  const std::size_t expected = kMegatronHeaderBytes + 12 * sequences + 8 * documents;
  if (index.size() == expected + sequences && sequences > 0) {
    refuse(origin, "is a multimodal index (it has modes); only text is supported");
  }
  if (index.size() != expected) {
    refuse(origin, fmt::format("has {} bytes, {} sequences and {} documents take {}", index.size(),
                               sequences, documents, expected));
  }
  return {type, static_cast<std::int64_t>(sequences), static_cast<std::int64_t>(documents)};
}

/// Documents are half-open ranges of sequences: 0 first, never falling, all sequences at the end.
void check_documents(std::span<const std::byte> index, const MegatronHeader& header,
                     const std::string& origin) {
  const std::size_t begin =
      kMegatronHeaderBytes + 12 * static_cast<std::size_t>(header.num_sequences);
  if (header.num_documents == 0) refuse(origin, "has an empty document index");
  std::int64_t before = 0;
  for (std::int64_t i = 0; i < header.num_documents; ++i) {
    const auto end = load_at<std::int64_t>(index, begin + 8 * static_cast<std::size_t>(i));
    if ((i == 0 && end != 0) || end < before || end > header.num_sequences) {
      refuse(origin, fmt::format("document {} ends at sequence {}, after {} of {}", i, end, before,
                                 header.num_sequences));
    }
    before = end;
  }
  if (before != header.num_sequences) {
    refuse(origin,
           fmt::format("its documents end at sequence {} of {}", before, header.num_sequences));
  }
}

std::vector<TokenSegment> open_nano_gpt(const fs::path& path) {
  const auto file = std::make_shared<const MappedFile>(path);
  const std::size_t size = file->bytes().size();
  if (size % 2 != 0) {
    refuse(path.string(), fmt::format("has {} bytes; a nanoGPT file holds 2 bytes a token", size));
  }
  return {{.owner = file,
           .data = file->bytes().data(),
           .type = TokenType::kU16,
           .count = static_cast<std::int64_t>(size / 2),
           .path = path.string(),
           .file_offset = 0}};
}

std::vector<TokenSegment> open_llm_c(const fs::path& path) {
  const auto file = std::make_shared<const MappedFile>(path);
  const LlmCHeader header = parse_llm_c_header(file->bytes(), path.string());
  return {{.owner = file,
           .data = file->bytes().data() + kLlmCHeaderBytes,
           .type = header.type,
           .count = header.count,
           .path = path.string(),
           .file_offset = static_cast<std::int64_t>(kLlmCHeaderBytes)}};
}

std::vector<TokenSegment> open_megatron(const fs::path& path) {
  const fs::path bin_path = with_suffix(path, ".bin"), index_path = with_suffix(path, ".idx");
  const MappedFile index(index_path);
  const auto bin = std::make_shared<const MappedFile>(bin_path);
  const MegatronIndex parsed = parse_megatron_index(
      index.bytes(), static_cast<std::int64_t>(bin->bytes().size()), index_path.string());
  std::vector<TokenSegment> segments;
  for (const MegatronIndex::Run& run : parsed.runs) {
    segments.push_back({.owner = bin,
                        .data = bin->bytes().data() + run.begin,
                        .type = parsed.type,
                        .count = run.num_bytes / num_bytes_of(parsed.type),
                        .path = bin_path.string(),
                        .file_offset = run.begin});
  }
  return segments;
}

}  // namespace

bool names_token_file(const fs::path& path) {
  return path.extension() == ".bin" || path.extension() == ".idx" || is_megatron_prefix(path);
}

bool is_megatron_prefix(const fs::path& path) {
  return !file_exists(path) && file_exists(fs::path(path) += ".bin") &&
         file_exists(fs::path(path) += ".idx");
}

TokenFormat detect_token_format(const fs::path& path) {
  if (file_exists(with_suffix(path, ".idx"))) return TokenFormat::kMegatron;
  const MappedFile file(path);
  if (file.bytes().size() < sizeof(std::int32_t)) return TokenFormat::kNanoGpt;
  const auto number = load_at<std::int32_t>(file.bytes(), 0);
  const bool llm_c = std::any_of(kMagics.begin(), kMagics.end(),
                                 [number](const Magic& magic) { return magic.number == number; });
  return llm_c ? TokenFormat::kLlmC : TokenFormat::kNanoGpt;
}

std::vector<TokenSegment> open_token_file(const fs::path& path, TokenFormat format) {
  switch (format) {
    case TokenFormat::kNanoGpt:
      return open_nano_gpt(path);
    case TokenFormat::kLlmC:
      return open_llm_c(path);
    case TokenFormat::kMegatron:
      return open_megatron(path);
  }
  return {};
}

LlmCHeader parse_llm_c_header(std::span<const std::byte> file, const std::string& origin) {
  if (file.size() < kLlmCHeaderBytes) {
    refuse(origin,
           fmt::format("has {} bytes, an llm.c header takes {}", file.size(), kLlmCHeaderBytes));
  }
  const auto number = load_at<std::int32_t>(file, 0);
  const auto version = load_at<std::int32_t>(file, 4);
  const auto count = load_at<std::int32_t>(file, 8);
  if (number != kGpt2Tokens && number != kLlama3Tokens) {
    for (const Magic& magic : kMagics) {
      if (magic.number == number) {
        refuse(origin, fmt::format("is {} of llm.c, not training tokens", magic.name));
      }
    }
    refuse(origin, fmt::format("is no llm.c token file: its magic number is {}", number));
  }
  const bool gpt2 = number == kGpt2Tokens;
  const std::int32_t known = gpt2 ? 1 : 7;
  if (version != known) {
    refuse(origin, fmt::format("has version {}, {} files have {}", version,
                               gpt2 ? "GPT-2" : "Llama-3", known));
  }
  const TokenType type = gpt2 ? TokenType::kU16 : TokenType::kU32;
  const std::int64_t expected =
      static_cast<std::int64_t>(kLlmCHeaderBytes) + std::int64_t{count} * num_bytes_of(type);
  if (count < 0 || expected != static_cast<std::int64_t>(file.size())) {
    refuse(origin, fmt::format("has {} bytes, its header says {} tokens of {} bytes", file.size(),
                               count, num_bytes_of(type)));
  }
  return {type, count};
}

MegatronIndex parse_megatron_index(std::span<const std::byte> index, std::int64_t bin_bytes,
                                   const std::string& origin) {
  const MegatronHeader header = parse_megatron_header(index, origin);
  check_documents(index, header, origin);
  MegatronIndex result{.type = header.type,
                       .num_sequences = header.num_sequences,
                       .num_documents = header.num_documents - 1,
                       .runs = {}};
  const std::int64_t width = num_bytes_of(header.type);
  const std::size_t pointers =
      kMegatronHeaderBytes + 4 * static_cast<std::size_t>(header.num_sequences);
  for (std::int64_t i = 0; i < header.num_sequences; ++i) {
    const auto at = static_cast<std::size_t>(i);
    const auto length = load_at<std::int32_t>(index, kMegatronHeaderBytes + 4 * at);
    const auto begin = load_at<std::int64_t>(index, pointers + 8 * at);
    const std::int64_t num_bytes = std::int64_t{length} * width;
    if (length < 0 || begin < 0 || begin > bin_bytes || num_bytes > bin_bytes - begin) {
      refuse(origin, fmt::format("sequence {} has {} tokens at byte {}, its .bin has {} bytes", i,
                                 length, begin, bin_bytes));
    }
    auto& runs = result.runs;
    if (!runs.empty() && runs.back().begin + runs.back().num_bytes == begin) {
      runs.back().num_bytes += num_bytes;
    } else {
      runs.push_back({begin, num_bytes});
    }
  }
  return result;
}

}  // namespace sluice
