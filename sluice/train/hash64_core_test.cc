#include <gtest/gtest.h>

#include <string>

#include "sluice/train/hash64.h"

namespace sluice {
namespace {

TEST(Hash64, AgreesWithXxh64sum) {
  // Printed by `printf '...' | xxh64sum`.
  EXPECT_EQ(hash_text(hash64(std::string_view(""))), "ef46db3751d8e999");
  EXPECT_EQ(hash_text(hash64(std::string_view("a"))), "d24ec4f1a98c6e5b");
  EXPECT_EQ(hash_text(hash64(std::string_view("The quick brown fox jumps over the lazy dog"))),
            "0b242d361fda71bc");
}

TEST(Hash64, DoesNotDependOnHowTheBytesArrive) {
  std::string text(1000, '\0');
  for (std::size_t i = 0; i < text.size(); ++i) text[i] = static_cast<char>(i * 31 % 251);
  for (std::size_t piece = 1; piece < 100; piece += 7) {
    Hash64 hash;
    hash.update({});
    for (std::size_t at = 0; at < text.size(); at += piece) {
      hash.update(std::as_bytes(std::span(text).subspan(at, std::min(piece, text.size() - at))));
    }
    EXPECT_EQ(hash.digest(), hash64(text)) << piece;
  }
}

TEST(Hash64, DependsOnTheSeed) {
  EXPECT_NE(hash64(std::string_view("a"), 1), hash64(std::string_view("a"), 2));
}

}  // namespace
}  // namespace sluice
