#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "sluice/train/test_files.h"
#include "sluice/train/token_files.h"

namespace sluice {
namespace {

/// Appends a number's bytes.
template <typename T>
void put(std::string& bytes, T value) {
  char raw[sizeof(T)];
  std::memcpy(raw, &value, sizeof(T));
  bytes.append(raw, sizeof(T));
}

template <typename T>
std::string raw_tokens(const std::vector<T>& tokens) {
  std::string bytes;
  for (const T token : tokens) put(bytes, token);
  return bytes;
}

std::vector<std::int64_t> all_tokens(const TokenSource& source) {
  std::vector<std::int64_t> tokens(static_cast<std::size_t>(source.num_tokens()));
  source.read(0, tokens);
  return tokens;
}

DataConfig config_of(const std::string& path) {
  DataConfig config;
  config.paths = {path};
  config.validation_fraction = 0.0;
  config.sequence_length = 1;
  return config;
}

std::vector<std::int64_t> read_tokens(const std::string& path, std::int64_t vocab_size = 1 << 20) {
  return all_tokens(open_tokens(config_of(path), vocab_size).train);
}

std::string refusal(const std::string& path, std::int64_t vocab_size = 1 << 20) {
  return message_of<Failure>([&] { read_tokens(path, vocab_size); });
}

std::string llm_c_file(std::int32_t magic, std::int32_t version, std::int32_t count,
                       const std::string& tokens) {
  std::string bytes;
  put(bytes, magic);
  put(bytes, version);
  put(bytes, count);
  bytes.resize(1024, '\0');
  return bytes + tokens;
}

/// An index of sequences given as (length, byte of .bin), one document each.
std::string megatron_index(std::uint8_t dtype,
                           const std::vector<std::pair<std::int32_t, std::int64_t>>& sequences) {
  std::string bytes("MMIDIDX\0\0", 9);
  put(bytes, std::uint64_t{1});
  put(bytes, dtype);
  put(bytes, static_cast<std::uint64_t>(sequences.size()));
  put(bytes, static_cast<std::uint64_t>(sequences.size() + 1));
  for (const auto& [length, begin] : sequences) put(bytes, length);
  for (const auto& [length, begin] : sequences) put(bytes, begin);
  for (std::size_t i = 0; i <= sequences.size(); ++i) put(bytes, static_cast<std::int64_t>(i));
  return bytes;
}

std::string megatron_refusal(const std::string& index, std::int64_t bin_bytes) {
  return message_of<Failure>(
      [&] { parse_megatron_index(std::as_bytes(std::span(index)), bin_bytes, "data.idx"); });
}

TEST(NanoGptTokens, AreSixteenBitsWithoutAHeader) {
  const TestFolder folder;
  const auto path = folder.write("train.bin", raw_tokens<std::uint16_t>({5, 65535, 0, 7}));
  EXPECT_EQ(read_tokens(path.string()), (std::vector<std::int64_t>{5, 65535, 0, 7}));
  EXPECT_CONTAINS(refusal(path.string(), 65535), "train.bin: the token 65535 at byte 2");
  const auto odd = folder.write("odd.bin", "abc");
  EXPECT_CONTAINS(refusal(odd.string()), "has 3 bytes");
}

TEST(LlmCTokens, AreReadInBothWidths) {
  const TestFolder folder;
  const auto gpt2 = folder.write(
      "gpt2.bin", llm_c_file(20240520, 1, 3, raw_tokens<std::uint16_t>({50256, 1, 2})));
  EXPECT_EQ(read_tokens(gpt2.string()), (std::vector<std::int64_t>{50256, 1, 2}));
  const auto llama =
      folder.write("llama.bin", llm_c_file(20240801, 7, 2, raw_tokens<std::uint32_t>({128000, 9})));
  EXPECT_EQ(read_tokens(llama.string()), (std::vector<std::int64_t>{128000, 9}));
  EXPECT_CONTAINS(refusal(llama.string(), 128000), "the token 128000 at byte 1024");
}

TEST(LlmCTokens, JoinShardsOfAPattern) {
  const TestFolder folder;
  folder.write("x_train_000002.bin", llm_c_file(20240520, 1, 1, raw_tokens<std::uint16_t>({3})));
  folder.write("x_train_000001.bin", llm_c_file(20240520, 1, 2, raw_tokens<std::uint16_t>({1, 2})));
  folder.write("x_val_000000.bin", llm_c_file(20240520, 1, 1, raw_tokens<std::uint16_t>({9})));
  EXPECT_EQ(read_tokens((folder.path() / "*_train_*.bin").string()),
            (std::vector<std::int64_t>{1, 2, 3}));
}

TEST(LlmCTokens, RefuseHeadersThatDoNotFit) {
  const TestFolder folder;
  const std::string two = raw_tokens<std::uint16_t>({1, 2});
  const std::pair<std::string, const char*> cases[] = {
      {llm_c_file(20240520, 2, 2, two), "version 2"},
      {llm_c_file(20240801, 1, 1, two), "version 1"},
      {llm_c_file(20240520, 1, 3, two), "says 3 tokens"},
      {llm_c_file(20240520, 1, 1, two), "says 1 tokens"},
      {llm_c_file(20240520, 1, -2, two), "says -2 tokens"},
      {llm_c_file(20240522, 1, 2, two), "evaluation set"},
      {llm_c_file(20240326, 3, 2, two), "a model"},
      {llm_c_file(20240520, 1, 2, two).substr(0, 500), "header takes 1024"},
  };
  for (const auto& [bytes, part] : cases) {
    EXPECT_CONTAINS(refusal(folder.write("x.bin", bytes).string()), part);
  }
  DataConfig config = config_of(folder.write("nano.bin", std::string(2000, 'a')).string());
  config.format = "llm.c";
  EXPECT_CONTAINS(message_of<Failure>([&] { open_tokens(config, 1 << 20); }), "magic number");
}

TEST(MegatronTokens, FollowTheIndex) {
  const TestFolder folder;
  folder.write("d.bin", raw_tokens<std::int32_t>({10, 11, 12, 13, 14}));
  folder.write("d.idx", megatron_index(4, {{2, 0}, {0, 8}, {2, 12}}));
  const std::vector<std::int64_t> expected{10, 11, 13, 14};  // token 12 belongs to no sequence
  EXPECT_EQ(read_tokens((folder.path() / "d.bin").string()), expected);
  EXPECT_EQ(read_tokens((folder.path() / "d.idx").string()), expected);
  EXPECT_EQ(read_tokens((folder.path() / "d").string()), expected);
  EXPECT_EQ(read_tokens((folder.path() / "d.*").string()), expected);  // both halves: one data set
  EXPECT_CONTAINS(refusal((folder.path() / "d").string(), 14), "d.bin: the token 14 at byte 16");
}

TEST(MegatronTokens, ComeInAllIntegerWidths) {
  const TestFolder folder;
  const std::pair<std::uint8_t, std::string> cases[] = {
      {1, raw_tokens<std::uint8_t>({1, 200})}, {2, raw_tokens<std::int8_t>({1, 100})},
      {3, raw_tokens<std::int16_t>({1, 100})}, {4, raw_tokens<std::int32_t>({1, 100})},
      {5, raw_tokens<std::int64_t>({1, 100})}, {8, raw_tokens<std::uint16_t>({1, 60000})}};
  for (const auto& [dtype, bytes] : cases) {
    folder.write("d.bin", bytes);
    folder.write("d.idx", megatron_index(dtype, {{2, 0}}));
    EXPECT_EQ(read_tokens((folder.path() / "d").string())[0], 1) << int{dtype};
    EXPECT_GE(read_tokens((folder.path() / "d").string())[1], 100) << int{dtype};
  }
  folder.write("d.bin", raw_tokens<std::int32_t>({1, -1}));
  folder.write("d.idx", megatron_index(4, {{2, 0}}));
  EXPECT_CONTAINS(refusal((folder.path() / "d").string()), "the token -1 at byte 4");
}

TEST(MegatronIndex, JoinsSequencesThatFollowEachOther) {
  const std::string index = megatron_index(8, {{2, 0}, {3, 4}, {1, 20}});
  const MegatronIndex parsed = parse_megatron_index(std::as_bytes(std::span(index)), 22, "d.idx");
  EXPECT_EQ(parsed.num_sequences, 3);
  EXPECT_EQ(parsed.num_documents, 3);
  ASSERT_EQ(parsed.runs.size(), 2u);
  EXPECT_EQ(parsed.runs[0].num_bytes, 10);
  EXPECT_EQ(parsed.runs[1].begin, 20);
}

TEST(MegatronIndex, RefusesWhatDoesNotFit) {
  const std::string good = megatron_index(8, {{2, 0}, {3, 4}});
  EXPECT_CONTAINS(megatron_refusal("", 10), "no Megatron index");
  EXPECT_CONTAINS(megatron_refusal(good.substr(0, 33), 10), "no Megatron index");
  EXPECT_CONTAINS(megatron_refusal("X" + good.substr(1), 10), "no Megatron index");
  EXPECT_CONTAINS(megatron_refusal(good + "x", 10), "has 83 bytes");
  EXPECT_CONTAINS(megatron_refusal(good + "xx", 10), "multimodal");
  EXPECT_CONTAINS(megatron_refusal(good, 9), "sequence 1 has 3 tokens at byte 4");
  EXPECT_CONTAINS(megatron_refusal(megatron_index(7, {{2, 0}}), 10), "floating point");
  EXPECT_CONTAINS(megatron_refusal(megatron_index(9, {{2, 0}}), 10), "dtype code 9");
  EXPECT_CONTAINS(megatron_refusal(megatron_index(8, {{-1, 0}}), 10), "-1 tokens");
  EXPECT_CONTAINS(megatron_refusal(megatron_index(8, {{1, -2}}), 10), "byte -2");
  const auto with = [&good](std::size_t at, auto value) {
    std::string changed = good;
    std::memcpy(changed.data() + at, &value, sizeof(value));
    return changed;
  };
  EXPECT_CONTAINS(megatron_refusal(with(9, std::uint64_t{2}), 10), "version 2");
  EXPECT_CONTAINS(megatron_refusal(with(18, ~std::uint64_t{0}), 10), "too few");
  EXPECT_CONTAINS(megatron_refusal(with(26, std::uint64_t{1} << 61), 10), "too few");
  EXPECT_CONTAINS(megatron_refusal(with(58, std::int64_t{1}), 10), "document 0 ends");
  EXPECT_CONTAINS(megatron_refusal(with(66, std::int64_t{3}), 10), "document 1 ends");
  EXPECT_CONTAINS(megatron_refusal(with(74, std::int64_t{1}), 10), "end at sequence 1 of 2");
}

TEST(MegatronIndex, SurvivesDamage) {
  const std::string good = megatron_index(8, {{2, 0}, {3, 4}, {1, 20}});
  std::mt19937 random(3);
  for (int round = 0; round < 20000; ++round) {
    std::string index = good;
    for (std::size_t edits = random() % 4 + 1; edits > 0; --edits) {
      index[random() % index.size()] = static_cast<char>(random());
    }
    if (random() % 8 == 0) index.resize(random() % index.size());
    try {
      const MegatronIndex parsed =
          parse_megatron_index(std::as_bytes(std::span(index)), 22, "fuzz.idx");
      for (const auto& run : parsed.runs) {
        ASSERT_GE(run.begin, 0);
        ASSERT_LE(run.begin + run.num_bytes, 22);
      }
    } catch (const Failure&) {
    }
  }
}

TEST(TokenFiles, AreNotMixedWithText) {
  const TestFolder folder;
  DataConfig config = config_of(folder.write("a.bin", "abcd").string());
  config.paths.push_back(folder.write("b.txt", "text").string());
  EXPECT_CONTAINS(message_of<InvalidArgument>([&] { open_tokens(config, 256); }), "holds tokens");
  config.paths = {folder.path().string()};
  config.tokenizer = "none";
  EXPECT_CONTAINS(message_of<InvalidArgument>([&] { open_tokens(config, 256); }), "is text");
  config.format = "nanogpt";
  EXPECT_CONTAINS(message_of<InvalidArgument>([&] { open_tokens(config, 256); }), "is a folder");
}

TEST(TokenFiles, TakeTheFormatThatIsAskedFor) {
  const TestFolder folder;
  DataConfig config = config_of(folder.write("tokens.dat", "abcd").string());
  config.format = "nanogpt";
  EXPECT_EQ(open_tokens(config, 1 << 20).train.num_tokens(), 2);
  config.paths = {folder.write("letters.bin", "abcd").string()};
  config.format = "text";
  EXPECT_EQ(open_tokens(config, 256).train.num_tokens(), 5);
}

}  // namespace
}  // namespace sluice
