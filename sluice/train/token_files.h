// token_files.h - token files of other trainers: nanoGPT, llm.c and Megatron. Free of torch. Read
// next: tokens.h.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "sluice/train/tokens.h"

namespace sluice {

enum class TokenFormat : std::uint8_t { kNanoGpt, kLlmC, kMegatron };

/// The format of a `.bin` file (or a Megatron `.idx` or prefix): Megatron when an index lies beside
/// it, llm.c by its magic number, else nanoGPT.
TokenFormat detect_token_format(const std::filesystem::path& path);

/// Whether `path` names token data: it ends in .bin or .idx, or is a Megatron prefix itself.
bool names_token_file(const std::filesystem::path& path);

/// Whether `path` is the common part of an existing PATH.bin and PATH.idx.
bool is_megatron_prefix(const std::filesystem::path& path);

/// Opens one file (for Megatron the .bin, .idx or the prefix of both) after checking its header and
/// size.
/// Throws: Failure naming the file and what is wrong with it.
std::vector<TokenSegment> open_token_file(const std::filesystem::path& path, TokenFormat format);

/// What a Megatron index says: where in .bin the tokens are, as runs of bytes that follow each
/// other.
struct MegatronIndex {
  struct Run {
    std::int64_t begin = 0;  // byte in .bin
    std::int64_t num_bytes = 0;
  };
  TokenType type = TokenType::kU16;
  std::int64_t num_sequences = 0;
  std::int64_t num_documents = 0;
  std::vector<Run> runs;
};

/// Checks all of an index against the size of its .bin. Throws: Failure.
MegatronIndex parse_megatron_index(std::span<const std::byte> index, std::int64_t bin_bytes,
                                   const std::string& origin);

/// Checks the header of an llm.c token file. Throws: Failure.
struct LlmCHeader {
  TokenType type = TokenType::kU16;
  std::int64_t count = 0;
};
LlmCHeader parse_llm_c_header(std::span<const std::byte> file, const std::string& origin);

}  // namespace sluice
