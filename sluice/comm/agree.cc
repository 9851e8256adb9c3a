#include "sluice/comm/agree.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "sluice/common/errors.h"

namespace sluice {
namespace {

constexpr std::size_t kBytes = 6;  // of text in a double, which holds 52 bits exactly

std::vector<double> to_numbers(const std::string& text) {
  std::vector<double> numbers{static_cast<double>(text.size())};
  for (std::size_t i = 0; i < text.size(); i += kBytes) {
    std::uint64_t bits = 0;
    std::memcpy(&bits, text.data() + i, std::min(kBytes, text.size() - i));
    numbers.push_back(static_cast<double>(bits));
  }
  return numbers;
}

std::string to_text(const std::vector<double>& numbers) {
  std::string text(static_cast<std::size_t>(numbers.at(0)), '\0');
  for (std::size_t i = 0; i < text.size(); i += kBytes) {
    const auto bits = static_cast<std::uint64_t>(numbers.at(1 + i / kBytes));
    std::memcpy(text.data() + i, &bits, std::min(kBytes, text.size() - i));
  }
  return text;
}

constexpr char kInvalid = 'i', kFailed = 'f';

/// What is told of an error: a letter for its kind, and its text. Empty: none.
std::string describe(const std::exception_ptr& error) {
  if (!error) return "";
  try {
    std::rethrow_exception(error);
  } catch (const InvalidArgument& invalid) {
    return kInvalid + std::string(invalid.what());
  } catch (const std::exception& other) {
    return kFailed + std::string(other.what());
  }
}

}  // namespace

std::vector<std::string> gather_texts(Transport& transport, const std::string& mine) {
  std::vector<std::string> texts;
  for (const auto& numbers : transport.all_gather(to_numbers(mine))) {
    texts.push_back(to_text(numbers));
  }
  return texts;
}

void agree(Transport& transport, const std::exception_ptr& error) {
  const auto texts = gather_texts(transport, describe(error));
  if (error) std::rethrow_exception(error);
  for (std::size_t rank = 0; rank < texts.size(); ++rank) {
    if (texts[rank].empty()) continue;
    const std::string text = fmt::format("rank {}: {}", rank, texts[rank].substr(1));
    if (texts[rank][0] == kInvalid) throw InvalidArgument(text);
    throw Failure(text);
  }
}

}  // namespace sluice
