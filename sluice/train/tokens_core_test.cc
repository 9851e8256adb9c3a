#include <gtest/gtest.h>

#include <cstring>

#include "sluice/train/test_files.h"
#include "sluice/train/text_files.h"
#include "sluice/train/tokens.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;

DataConfig text_config(const TestFolder& folder, std::int64_t sequence_length = 1) {
  DataConfig config;
  config.paths = {folder.path().string()};
  config.validation_fraction = 0.0;
  config.sequence_length = sequence_length;
  return config;
}

/// The whole stream; zero bytes are shown as '|'.
std::string text_of(const TokenSource& source) {
  std::vector<std::int64_t> tokens(static_cast<std::size_t>(source.num_tokens()));
  source.read(0, tokens);
  std::string text;
  for (const std::int64_t token : tokens) text += token == 0 ? '|' : static_cast<char>(token);
  return text;
}

TEST(TextTokens, AreTheBytesOfSortedFilesWithASeparatorAfterEach) {
  const TestFolder folder;
  folder.write("b.txt", "second");
  folder.write("a/z.txt", "first");
  folder.write("c.txt", "\xc3\xa9");
  folder.write("empty.txt", "");
  const TokenSplit split = open_tokens(text_config(folder), 256);
  EXPECT_EQ(text_of(split.train), "first|second|\xc3\xa9|");
  EXPECT_EQ(split.validation.num_tokens(), 0);
}

TEST(TextTokens, LeaveOutBinaryHiddenAndUnwantedFiles) {
  const TestFolder folder;
  folder.write("a.py", "one");
  folder.write("b.txt", "two");
  folder.write("c.py", std::string_view("bin\0ary", 7));
  folder.write(".hidden.py", "no");
  folder.write(".git/x.py", "no");
  folder.write("skip/d.py", "no");
  folder.write("deep/er/e.py", "three");
  fs::create_symlink("/nowhere", folder.path() / "dangling.py");
  DataConfig config = text_config(folder);
  config.include = {"*.py"};
  config.ignore = {"skip"};
  const TokenSplit split = open_tokens(config, 256);
  EXPECT_EQ(text_of(split.train), "one|three|");
  EXPECT_CONTAINS(split.summary, "1 binary files left out");
}

TEST(TextTokens, RefuseANamedFileThatIsBinaryAndAPathThatIsNotThere) {
  const TestFolder folder;
  DataConfig config = text_config(folder);
  config.paths = {folder.write("x.txt", std::string_view("a\0b", 3)).string()};
  EXPECT_CONTAINS(message_of<InvalidArgument>([&] { open_tokens(config, 256); }), "is not text");
  config.paths = {"/nowhere/text"};
  EXPECT_CONTAINS(message_of<InvalidArgument>([&] { open_tokens(config, 256); }),
                  "there is no /nowhere/text");
  config.paths = {folder.path().string() + "/*.none"};
  EXPECT_CONTAINS(message_of<InvalidArgument>([&] { open_tokens(config, 256); }), "*.none");
}

TEST(TextTokens, ExpandPatternsInOrder) {
  const TestFolder folder;
  folder.write("2.txt", "two");
  folder.write("1.txt", "one");
  DataConfig config = text_config(folder);
  config.paths = {(folder.path() / "*.txt").string()};
  EXPECT_EQ(text_of(open_tokens(config, 256).train), "one|two|");
}

TEST(TextTokens, OfFilesTooLongToCopyEndWithASeparatorToo) {
  const TestFolder folder;
  const std::string big(3 << 20, 'b');
  folder.write("a", "first");
  folder.write("b", big);
  folder.write("c", "last");
  EXPECT_EQ(text_of(open_tokens(text_config(folder), 256).train), "first|" + big + "|last|");
}

TEST(TextTokens, SplitByPathSoThatNewFilesMoveNone) {
  const TestFolder folder;
  for (int i = 0; i < 200; ++i) {
    folder.write(fmt::format("{}.txt", i), fmt::format("<{}>", i));
  }
  DataConfig config = text_config(folder);
  config.validation_fraction = 0.1;
  const TokenSplit before = open_tokens(config, 256);
  const std::string validation = text_of(before.validation), train = text_of(before.train);
  const auto held_back = std::count(validation.begin(), validation.end(), '|');
  EXPECT_GT(held_back, 5);
  EXPECT_LT(held_back, 40);
  folder.write("more.txt", "<more>");
  const TokenSplit after = open_tokens(config, 256);
  for (int i = 0; i < 200; ++i) {
    const std::string document = fmt::format("<{}>", i);
    const bool held = validation.find(document) != std::string::npos;
    EXPECT_EQ(train.find(document) == std::string::npos, held);
    EXPECT_EQ(text_of(after.validation).find(document) != std::string::npos, held) << i;
  }
}

TEST(TextTokens, OfOneFileAreSplitAtTheEnd) {
  const TestFolder folder;
  folder.write("a.txt", "0123456789abcdefghi");
  DataConfig config = text_config(folder);
  config.validation_fraction = 0.25;
  const TokenSplit split = open_tokens(config, 256);
  EXPECT_EQ(text_of(split.train), "0123456789abcde");
  EXPECT_EQ(text_of(split.validation), "fghi|");
}

TEST(TextTokens, TakeValidationFromItsOwnPaths) {
  const TestFolder folder;
  DataConfig config = text_config(folder);
  config.paths = {folder.write("t.txt", "train").string()};
  config.validation_paths = {folder.write("v.txt", "valid").string()};
  config.validation_fraction = 0.5;
  const TokenSplit split = open_tokens(config, 256);
  EXPECT_EQ(text_of(split.train), "train|");
  EXPECT_EQ(text_of(split.validation), "valid|");
}

TEST(TextTokens, RefuseDataShorterThanASequence) {
  const TestFolder folder;
  folder.write("a.txt", "0123456789");
  DataConfig config = text_config(folder, 10);
  EXPECT_NO_THROW(open_tokens(config, 256));
  config.sequence_length = 11;
  EXPECT_CONTAINS(message_of<InvalidArgument>([&] { open_tokens(config, 256); }),
                  "11 tokens are too few for one sequence of data.sequence_length + 1 = 12");
  config.sequence_length = 8;
  config.validation_fraction = 0.1;
  EXPECT_CONTAINS(message_of<InvalidArgument>([&] { open_tokens(config, 256); }),
                  "data.validation_fraction");
}

TEST(TokenSource, NamesFileOffsetAndValueOfATokenOutsideTheVocabulary) {
  const TestFolder folder;
  folder.write("a.txt", "aaaa");
  folder.write("b.txt", "aabz");
  const TokenSource source = open_tokens(text_config(folder), 'z').train;
  std::vector<std::int64_t> tokens(4);
  EXPECT_NO_THROW(source.read(4, tokens));
  const std::string text = message_of<Failure>([&] { source.read(5, tokens); });
  EXPECT_CONTAINS(text, "b.txt: the token 122 at byte 3");
  EXPECT_CONTAINS(text, "model.vocab_size - 1 = 121");
}

TEST(TokenSource, ReadsAnyRangeAcrossSegments) {
  const TestFolder folder;
  std::string all;
  for (int i = 0; i < 20; ++i) {
    const std::string text(static_cast<std::size_t>(i % 7 + 1), static_cast<char>('a' + i));
    folder.write(fmt::format("{:02}.txt", i), text);
    all += text + "|";
  }
  const TokenSource source = open_tokens(text_config(folder), 256).train;
  const std::int64_t total = source.num_tokens();
  ASSERT_EQ(total, static_cast<std::int64_t>(all.size()));
  for (std::int64_t first = 0; first < total; ++first) {
    for (std::int64_t count = 0; first + count <= total; ++count) {
      ASSERT_EQ(text_of(source.part(first, count)),
                all.substr(static_cast<std::size_t>(first), static_cast<std::size_t>(count)));
    }
  }
  std::vector<std::int64_t> tokens(2);
  EXPECT_THROW(source.read(total - 1, tokens), InternalError);
}

TEST(TokenSource, HasADigestOfWhatItIsMadeOf) {
  const TestFolder folder;
  folder.write("a.txt", "some");
  folder.write("b.txt", "text");
  const TokenSource source = open_tokens(text_config(folder), 256).train;
  const std::string digest = source.digest();
  EXPECT_EQ(open_tokens(text_config(folder), 256).train.digest(), digest);
  EXPECT_NE(source.part(0, 5).digest(), digest);
  folder.write("b.txt", "texts");
  EXPECT_NE(open_tokens(text_config(folder), 256).train.digest(), digest);
}

}  // namespace
}  // namespace sluice
