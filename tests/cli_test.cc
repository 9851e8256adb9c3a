// Runs the program as a user does: exit codes, what goes to which stream, keys of JSON, files.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

namespace sluice {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using nlohmann::ordered_json;

std::string read(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

void write(const fs::path& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

struct Outcome {
  int code = -1;
  std::string out;
  std::string err;
};

/// A folder of its own for each test, in which the program runs.
class Program : public testing::Test {
 protected:
  Program() {
    std::string name = (fs::temp_directory_path() / "sluice_cli_XXXXXX").string();
    folder_ = mkdtemp(name.data());
  }
  ~Program() override { fs::remove_all(folder_); }

  /// Runs a line of shell in which `sluice` is `program`.
  Outcome shell(const std::string& line, const fs::path& program = SLUICE_PROGRAM) const {
    const std::string command = "cd '" + folder_.string() + "' && PATH='" +
                                program.parent_path().string() + "':\"$PATH\" && ( " + line +
                                " ) >.out 2>.err </dev/null";
    const int status = std::system(command.c_str());
    Outcome outcome;
    outcome.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128;
    outcome.out = read(folder_ / ".out");
    outcome.err = read(folder_ / ".err");
    return outcome;
  }

  Outcome sluice(const std::string& arguments) const { return shell("sluice " + arguments); }

  ordered_json sluice_json(const std::string& arguments) const {
    const Outcome outcome = sluice(arguments + " --format json");
    EXPECT_EQ(outcome.code, 0) << arguments << "\n" << outcome.err;
    EXPECT_EQ(outcome.err, "");
    return ordered_json::parse(outcome.out);
  }

  /// The arguments fail with `code`, nothing on standard output, and one line that has `words`.
  void expect_error(const std::string& arguments, int code,
                    const std::vector<std::string>& words) const {
    const Outcome outcome = sluice(arguments);
    EXPECT_EQ(outcome.code, code) << arguments << "\n" << outcome.err;
    EXPECT_EQ(outcome.out, "") << arguments;
    EXPECT_EQ(outcome.err.rfind("sluice: ", 0), 0U) << arguments << "\n" << outcome.err;
    EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << outcome.err;
    for (const std::string& word : words) {
      EXPECT_NE(outcome.err.find(word), std::string::npos) << word << " not in " << outcome.err;
    }
  }

  fs::path folder_;
};

using Cli = Program;
using Simulate = Program;
using ScheduleCommand = Program;

const char* const kSmall = "simulate 1f1b --ranks 2 --microbatches 3 ";

TEST_F(Cli, BareProgramPrintsItsHelp) {
  const Outcome bare = sluice("");
  EXPECT_EQ(bare.code, 0);
  EXPECT_EQ(bare.out, sluice("--help").out);
  for (const char* command : {"train", "generate", "verify", "simulate", "schedule"}) {
    EXPECT_NE(bare.out.find(command), std::string::npos);
  }
}

TEST_F(Cli, TellsItsVersion) {
  const Outcome outcome = sluice("--version");
  EXPECT_EQ(outcome.code, 0);
  EXPECT_EQ(outcome.out, std::string("sluice ") + SLUICE_VERSION + "\n");
}

TEST_F(Cli, WrongUseEndsWithTwoAndOneLine) {
  expect_error("foo", 2, {"'foo'", "simulate", "schedule"});
  expect_error("--bogus", 2, {"--bogus"});
  expect_error("simulate", 2, {"SCHEDULE"});
  expect_error("simulate 1f1b --ranks 2", 2, {"--microbatches"});
  expect_error(std::string(kSmall) + "--bogus 3", 2, {"--bogus"});
  expect_error(std::string(kSmall) + "extra", 2, {"'extra'"});
  expect_error(std::string(kSmall) + "--ranks 3", 2, {"--ranks"});
  expect_error("schedule", 2, {"schedule --help"});
  expect_error("schedule lst", 2, {"'lst'", "list", "show", "check"});
  expect_error("schedule check", 2, {"FILE"});
  expect_error("simulate 1f1b --ranks 2 --microbatches $'3\\n4'", 2, {"--microbatches"});
}

TEST_F(Cli, ErrorsNameTheOptionTheValueAndTheRule) {
  expect_error("simulate 1f1b --ranks x --microbatches 1", 2, {"--ranks x", "whole number"});
  expect_error("simulate 1f1b --ranks 0 --microbatches 1", 2, {"--ranks 0", "from 1"});
  expect_error("simulate 1f1b --ranks 99999999999 --microbatches 1", 2, {"--ranks 99999999999"});
  expect_error("simulate 1f1b --ranks 2.5 --microbatches 1", 2, {"--ranks 2.5"});
  expect_error("simulate 1f1b --ranks 100000 --microbatches 100000", 2, {"100000"});
  const std::string small = kSmall;
  expect_error(small + "--chunks 0", 2, {"--chunks 0"});
  expect_error(small + "--chunks 3", 2, {"chunks", "3"});
  expect_error(small + "--times 1,2", 2, {"--times 1,2", "F,I,W"});
  expect_error(small + "--times 1,2,x", 2, {"--times x"});
  expect_error(small + "--times 1,-2,1", 2, {"--times -2"});
  expect_error(small + "--times 0,0,0", 2, {"--times 0,0,0"});
  expect_error(small + "--times 1,1,1e999", 2, {"--times 1e999"});
  expect_error(small + "--p2p -1", 2, {"--p2p -1"});
  expect_error(small + "--p2p nan", 2, {"--p2p nan"});
  expect_error(small + "--format xml", 2, {"--format xml", "text, json, csv"});
  expect_error(small + "--exchange some", 2, {"--exchange some", "none, pairwise, balanced"});
  expect_error(small + "--vocab first", 2, {"--vocab first", "last, parallel-1, parallel-2"});
  expect_error(small + "--offload some", 2, {"--offload some", "none, half, full"});
  expect_error("schedule show 1f1b --ranks -4", 2, {"--ranks -4"});
}

TEST_F(Cli, AnUnknownScheduleListsTheKnownOnes) {
  for (const char* command : {"simulate", "schedule show"}) {
    expect_error(std::string(command) + " 1f2b --ranks 2 --microbatches 2", 2,
                 {"'1f2b'", "gpipe, 1f1b, interleaved"});
  }
}

TEST_F(Cli, VocabularyExchangeAndOffloadGoTogether) {
  const Outcome outcome = sluice(
      "simulate slice-v --ranks 4 --microbatches 4 --slices 8 --attention-ratio 2 "
      "--offload-ratio 0.3 --vocab parallel-2 --exchange balanced --offload full --format json");
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const json together = json::parse(outcome.out);
  EXPECT_GT(together["exchanged_kv_slices"].get<double>(), 0.0);
  EXPECT_GT(together["peak_offloaded"][0].get<double>(), 0.0);
}

TEST_F(Cli, SlicesExchangeTheirAttentionWhenToldWhatItTakes) {
  const std::string command =
      "simulate slimpipe --ranks 8 --microbatches 4 --chunks 5 --slices 16 --format json ";
  const auto simulated = [&](const std::string& options) {
    const Outcome outcome = sluice(command + options);
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return json::parse(outcome.out);
  };
  const json balanced = simulated("--attention-ratio 4.27 --exchange balanced");
  EXPECT_GE(balanced["bubble_fraction"], 0.0214);
  EXPECT_LE(balanced["bubble_fraction"], 0.0219);
  const json pairwise = simulated("--attention-ratio 4.27 --exchange pairwise");
  EXPECT_NEAR(pairwise["bubble_fraction"], 0.0434, 0.001);
  EXPECT_EQ(pairwise["exchanged_kv_slices"], balanced["exchanged_kv_slices_pairwise"]);
  EXPECT_LE(balanced["exchanged_kv_slices"].get<double>(),
            1.4 * pairwise["exchanged_kv_slices"].get<double>());
  const json none = simulated("--attention-ratio 4.27");
  EXPECT_NEAR(none["bubble_fraction"], 0.1643, 0.001);
  EXPECT_EQ(none["exchanged_kv_slices"], 0.0);
  EXPECT_EQ(simulated("--exchange balanced")["exchanged_kv_slices"], 0.0);  // all alike
}

TEST_F(Cli, SlicesThatDoNotFitAreRefusedWithOnesThatDo) {
  expect_error("simulate slimpipe --ranks 8 --microbatches 4 --slices 7", 2,
               {"slices to 8 or 16", "ranks to 7"});
  expect_error("simulate slimpipe --ranks 4 --microbatches 4 --slices 12 --group 5", 2,
               {"group to one of 4, 6, 12"});
  expect_error("simulate slimpipe --ranks 4 --microbatches 4 --slices 8 --attention-ratio x", 2,
               {"--attention-ratio x"});
}

TEST_F(Cli, OptionsOfUnbuiltTechniquesMayBeSetToNothing) {
  EXPECT_EQ(
      sluice(std::string(kSmall) + "--slices 1 --exchange none --vocab last --offload none").code,
      0);
}

TEST_F(Cli, AFullDiskIsAFailure) {
  if (!fs::exists("/dev/full")) GTEST_SKIP() << "no /dev/full";
  for (const char* arguments : {"--help", "schedule list", "schedule show 1f1b --format csv"}) {
    const Outcome outcome = sluice(std::string(arguments) + " >/dev/full");
    EXPECT_EQ(outcome.code, 1) << arguments;
    EXPECT_NE(outcome.err.find("standard output"), std::string::npos) << outcome.err;
  }
  expect_error(std::string(kSmall) + "--svg /dev/full", 1, {"/dev/full"});
}

TEST_F(Simulate, OffloadLowersThePeakAndSaysWhatIsAway) {
  const std::string sizes = " --ranks 8 --chunks 5 --microbatches 32 --offload-ratio 1";
  const ordered_json plain = sluice_json("simulate po" + sizes);
  const ordered_json half = sluice_json("simulate po --offload half" + sizes);
  EXPECT_EQ(sluice_json("simulate po-h" + sizes)["peak_activations"], half["peak_activations"]);
  EXPECT_EQ(plain["peak_offloaded"][0], 0.0);
  EXPECT_GT(half["peak_offloaded"][0], 0.0);
  EXPECT_EQ(plain["peak_activations"][0], 24.0 / 40.0);
  EXPECT_LE(half["peak_activations"][0], 8.0 / 40.0);
  EXPECT_LE(half["makespan"].get<double>(), plain["makespan"].get<double>());
  EXPECT_EQ(sluice_json("simulate po-f --offload none" + sizes)["passes"], plain["passes"]);
  expect_error("simulate po --offload 6" + sizes, 2, {"--offload 6", "from 0 to 5"});
}

TEST_F(Simulate, JsonHasTheDocumentedKeysInOrder) {
  const ordered_json result = sluice_json("simulate 1f1b --ranks 4 --microbatches 8");
  std::vector<std::string> keys;
  for (const auto& item : result.items()) keys.push_back(item.key());
  EXPECT_EQ(keys, (std::vector<std::string>{
                      "schedule", "ranks", "chunks", "microbatches", "slices", "passes", "makespan",
                      "work", "bubble_fraction", "span_bubble_fraction", "peak_activations",
                      "peak_offloaded", "p2p_messages", "exchanged_kv_slices"}));
}

TEST_F(Simulate, GivesTheClosedFormsOf1F1B) {
  const ordered_json result = sluice_json("simulate 1f1b --ranks 4 --microbatches 8");
  EXPECT_EQ(result["schedule"], "1f1b");
  EXPECT_EQ(result["ranks"], 4);
  EXPECT_EQ(result["chunks"], 1);
  EXPECT_EQ(result["microbatches"], 8);
  EXPECT_EQ(result["slices"], 1);
  EXPECT_EQ(result["passes"], 64);
  EXPECT_EQ(result["makespan"], 33.0);
  EXPECT_EQ(result["work"], 24.0);
  EXPECT_DOUBLE_EQ(result["bubble_fraction"], 9.0 / 33.0);
  EXPECT_DOUBLE_EQ(result["span_bubble_fraction"], 9.0 / 33.0);
  EXPECT_EQ(result["peak_activations"], ordered_json({1.0, 0.75, 0.5, 0.25}));
  EXPECT_EQ(result["peak_offloaded"], ordered_json({0.0, 0.0, 0.0, 0.0}));
  EXPECT_EQ(result["p2p_messages"], 48);
  EXPECT_EQ(result["exchanged_kv_slices"], 0);
}

// At unit cost the extra time is (p-1)(F+B)/v, whatever the unit and the number of chunks.
TEST_F(Simulate, CountsTheTimesOfAMicrobatchOnARankForAnyNumberOfChunks) {
  for (const auto& [chunks, makespan] :
       std::vector<std::pair<int, double>>{{2, 28.5}, {4, 26.25}}) {
    const std::string arguments =
        "simulate interleaved --ranks 4 --microbatches 8 --chunks " + std::to_string(chunks);
    EXPECT_EQ(sluice_json(arguments)["makespan"], makespan);
    EXPECT_EQ(sluice_json(arguments + " --times 0.1,0.1,0.1")["makespan"], makespan / 10.0);
    EXPECT_EQ(sluice_json(arguments)["work"], 24.0);
  }
  EXPECT_EQ(sluice_json("simulate interleaved --ranks 4 --microbatches 8")["chunks"], 2);
}

TEST_F(Simulate, AddsTheTimeOfMessages) {
  // The first microbatch goes down three links, the last gradient comes back up them.
  EXPECT_EQ(sluice_json("simulate gpipe --ranks 4 --microbatches 8 --p2p 0.5")["makespan"], 36.0);
}

// Zero Bubble paper (arXiv 2401.10241), 1.5B model on 8 ranks with 24 microbatches: 0.2431.
TEST_F(Simulate, ReproducesAPublishedBubbleFromMeasuredTimes) {
  write(folder_ / "costs.json",
        R"({"unit": "ms", "forward": 18.522, "backward_input": 18.086, "backward_weight": 9.337,
            "p2p": 0.601})");
  const std::string arguments = "simulate 1f1b --ranks 8 --microbatches 24 --costs costs.json";
  EXPECT_NEAR(sluice_json(arguments)["span_bubble_fraction"], 0.2431, 0.0001);
  const Outcome text = sluice(arguments);
  EXPECT_NE(text.out.find("makespan     1456.75 ms"), std::string::npos) << text.out;
}

TEST_F(Simulate, TakesCostsPerRank) {
  write(folder_ / "costs.json", R"({"forward": [1, 2, 4], "backward": [2, 4, 8], "p2p": 0})");
  const ordered_json result =
      sluice_json("simulate gpipe --ranks 3 --microbatches 5 --costs costs.json");
  EXPECT_EQ(result["work"], 60.0);
  EXPECT_EQ(result["makespan"], (1 + 2 + 5 * 4) + (5 * 8 + 4 + 2));
}

TEST_F(Simulate, AnOptionGoesBeforeTheCostsFile) {
  write(folder_ / "costs.json", R"({"forward": 1, "backward": 2, "p2p": 7})");
  const std::string arguments = "simulate gpipe --ranks 4 --microbatches 8 --costs costs.json";
  EXPECT_EQ(sluice_json(arguments + " --p2p 0.5")["makespan"], 36.0);
  EXPECT_EQ(sluice_json(arguments)["makespan"], 33.0 + 6 * 7);
}

TEST_F(Simulate, RefusesCostsThatDoNotFit) {
  const std::string arguments = "simulate gis --ranks 2 --microbatches 2 --costs costs.json";
  expect_error(arguments, 2, {"costs.json", "No such file"});
  expect_error(arguments + " --times 1,1,1", 2, {"--costs", "--times"});
  write(folder_ / "costs.json", "{");
  expect_error(arguments, 2, {"--costs costs.json", "JSON object"});
  write(folder_ / "costs.json", R"({"forward": [1, 2, 3], "backward": 1})");
  expect_error(arguments, 2, {"--costs costs.json", "\"forward\"", "3 values", "2 ranks"});
  write(folder_ / "costs.json", R"({"forward": 1, "backward": 2, "bakward": 1})");
  expect_error(arguments, 2, {"\"bakward\""});
  write(folder_ / "costs.json", R"({"forward": 1, "backward": -2})");
  expect_error(arguments, 2, {"\"backward\"", "-2"});
  write(folder_ / "costs.json", R"({"forward": 1, "backward": 2})");
  expect_error(arguments, 2, {"gis", "backward_input", "backward_weight"});
  write(folder_ / "costs.json", R"({"forward": 0, "backward_input": 0, "backward_weight": 0})");
  expect_error(arguments, 2, {"above 0"});
  write(folder_ / "costs.json",
        R"({"forward": 1, "backward_input": 1, "backward_weight": 1, "vocab_pass": 1})");
  expect_error(arguments, 2, {"vocab_pass"});
  write(folder_ / "costs.json", R"({"forward": 1, "backward_input": 1, "backward_weight": 1,
                                    "vocab_pass": [0, 0], "vocab_barrier": 0})");
  EXPECT_EQ(sluice(arguments).code, 0);
}

TEST_F(Simulate, TextShowsSettingsPictureAndResults) {
  const Outcome outcome = sluice("simulate interleaved --ranks 4 --microbatches 8 --p2p 0.25");
  EXPECT_EQ(outcome.code, 0);
  EXPECT_EQ(outcome.err, "");
  for (const char* part :
       {"schedule      interleaved", "ranks         4", "chunks        2", "p2p           0.25",
        "rank 3  ", "F forward, B backward", "makespan ", "work ", "bubble ", "span bubble ",
        "messages     112", "activations  1.375 1.125 0.875 0.625"}) {
    EXPECT_NE(outcome.out.find(part), std::string::npos) << part << " not in\n" << outcome.out;
  }
  EXPECT_EQ(outcome.out.find('\x1b'), std::string::npos);
}

TEST_F(Simulate, LeavesOutAPictureNobodyCanRead) {
  const Outcome outcome = sluice("simulate 1f1b --ranks 100 --microbatches 10");
  EXPECT_EQ(outcome.code, 0);
  EXPECT_EQ(outcome.out.find("rank 99 "), std::string::npos);
  EXPECT_NE(outcome.out.find("activations  0.1 on rank 0 to 0.01 on rank 99"), std::string::npos)
      << outcome.out;
}

TEST_F(Simulate, CsvIsTheSchedule) {
  const Outcome csv = sluice("simulate 1f1b --ranks 2 --microbatches 2 --format csv");
  EXPECT_EQ(csv.code, 0);
  EXPECT_EQ(csv.out, "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n");
}

TEST_F(Simulate, WritesTraceAndSvgAndNothingElse) {
  const Outcome outcome =
      sluice("simulate interleaved --ranks 2 --microbatches 4 --trace a.json --svg a.svg");
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  const json trace = json::parse(read(folder_ / "a.json"));
  double last = 0.0;
  for (const json& event : trace.at("traceEvents")) {
    if (event.at("ph") == "X") {
      last = std::max(last, event.at("ts").get<double>() + event.at("dur").get<double>());
    }
  }
  EXPECT_DOUBLE_EQ(last, 13'500.0);  // 13.5 units of a millisecond, in microseconds
  EXPECT_EQ(read(folder_ / "a.svg").rfind("<svg ", 0), 0U);
  for (const fs::directory_entry& entry : fs::directory_iterator(folder_)) {
    EXPECT_NE(entry.path().extension(), ".tmp");
  }
}

TEST_F(Simulate, TraceOfMeasuredTimesIsInTheirUnit) {
  write(folder_ / "costs.json", R"({"unit": "us", "forward": 1, "backward": 2})");
  ASSERT_EQ(
      sluice("simulate gpipe --ranks 1 --microbatches 1 --costs costs.json --trace a.json").code,
      0);
  const json trace = json::parse(read(folder_ / "a.json"));
  for (const json& event : trace.at("traceEvents")) {
    if (event.at("ph") == "X" && event.at("name") == "0B0") {
      EXPECT_EQ(event.at("ts"), 1.0);
      EXPECT_EQ(event.at("dur"), 2.0);
    }
  }
}

TEST_F(Simulate, LeavesNoPartOfAFileBehind) {
  expect_error(std::string(kSmall) + "--trace none/a.json", 1, {"none/a.json", "No such file"});
  fs::create_directory(folder_ / "folder");
  expect_error(std::string(kSmall) + "--svg folder", 1, {"folder"});
  // An SVG that is refused must not leave the trace of the same command either.
  expect_error("simulate 1f1b --ranks 10 --microbatches 6000 --trace b.json --svg b.svg", 2,
               {"120000"});
  for (const char* name : {"b.json", "b.svg", "b.json.tmp", "b.svg.tmp", "folder.tmp"}) {
    EXPECT_FALSE(fs::exists(folder_ / name)) << name;
  }
}

TEST_F(Simulate, ReplacesAFileButNotADevice) {
  write(folder_ / "a.svg", "old");
  fs::create_symlink("/dev/null", folder_ / "null");
  ASSERT_EQ(sluice(std::string(kSmall) + "--svg a.svg --trace null").code, 0);
  EXPECT_EQ(read(folder_ / "a.svg").rfind("<svg ", 0), 0U);
  EXPECT_TRUE(fs::is_symlink(folder_ / "null"));
}

TEST_F(ScheduleCommand, ListHasEveryScheduleInBothForms) {
  const ordered_json list = sluice_json("schedule list");
  ASSERT_TRUE(list.is_array());
  const std::string text = sluice("schedule list").out;
  std::vector<std::string> names;
  for (const ordered_json& entry : list) {
    for (const char* key : {"name", "summary", "source", "bubble", "memory", "rules"}) {
      EXPECT_FALSE(entry.at(key).get<std::string>().empty()) << key;
    }
    EXPECT_GE(entry.at("default_chunks").get<int>(), 1);
    names.push_back(entry.at("name"));
    EXPECT_NE(text.find("\n" + names.back() + " "), std::string::npos) << names.back();
  }
  for (const char* name :
       {"gpipe", "1f1b", "interleaved", "breadth-first", "zb-1p", "zb-2p", "zb-v", "1f1b-v",
        "v-half", "v-min", "dualpipe-v", "gis", "gis-h", "po", "po-h", "po-f"}) {
    EXPECT_EQ(std::count(names.begin(), names.end(), name), 1) << name;
  }
}

TEST_F(ScheduleCommand, EveryScheduleCanBeSimulatedShownAndChecked) {
  for (const ordered_json& entry : sluice_json("schedule list")) {
    const std::string name = entry.at("name");
    const std::string sizes = name + " --ranks 3 --microbatches 7 --times 1,1.5,0.5 --p2p 0.1";
    const ordered_json simulated = sluice_json("simulate " + sizes);
    EXPECT_EQ(simulated["schedule"], name);
    EXPECT_EQ(simulated["chunks"], entry.at("default_chunks"));
    const Outcome csv = sluice("simulate " + sizes + " --format csv >a.csv && cat a.csv");
    EXPECT_EQ(sluice("schedule show " + sizes + " --format csv").out, csv.out);
    const Outcome check = sluice("schedule check a.csv");
    EXPECT_EQ(check.code, 0) << name << "\n" << check.out;
    EXPECT_NE(check.out.find("no problems"), std::string::npos);
  }
}

TEST_F(ScheduleCommand, ShowDrawsOrGivesTheOrder) {
  const Outcome text = sluice("schedule show 1f1b --ranks 2 --microbatches 3");
  EXPECT_EQ(text.code, 0);
  EXPECT_EQ(text.out,
            "1f1b: 2 ranks, 3 microbatches\n\n"
            "rank 0  F0 F1 ......B0--- F2 B1--- ...B2---\n"
            "rank 1  ...F0 B0--- F1 B1--- F2 B2--- ......\n"
            "time    0              5              10\n"
            "F forward, B backward; a cell: letter, microbatch\n");
  const ordered_json order = sluice_json("schedule show interleaved --ranks 2 --microbatches 2");
  EXPECT_EQ(order["stages"], 4);
  EXPECT_EQ(order["rank_of_stage"], ordered_json({0, 1, 0, 1}));
  EXPECT_EQ(order["order"][0][0], "0F0");
  EXPECT_EQ(order["order"][1].size(), 8U);
}

TEST_F(ScheduleCommand, ShowHasSizesByDefault) {
  EXPECT_NE(sluice("schedule show gis").out.find("gis: 4 ranks, 2 chunks, 8 microbatches"),
            std::string::npos);
}

TEST_F(ScheduleCommand, CheckReportsEveryProblemAtOnce) {
  // 0F1 is missing; on rank 1 the backward of microbatch 1 comes before its forward.
  write(folder_ / "bad.csv", "0F0,0B0,0B1\n1F0,1B0,1B1,1F1\n");
  const Outcome outcome = sluice("schedule check bad.csv");
  EXPECT_EQ(outcome.code, 1);
  EXPECT_NE(outcome.out.find("0F1"), std::string::npos) << outcome.out;
  EXPECT_NE(outcome.out.find("1B1"), std::string::npos) << outcome.out;
  EXPECT_NE(outcome.out.find("\nrank 1 "), std::string::npos) << outcome.out;
  EXPECT_EQ(outcome.err.rfind("sluice: bad.csv: ", 0), 0U) << outcome.err;

  const Outcome as_json = sluice("schedule check bad.csv --format json");
  EXPECT_EQ(as_json.code, 1);
  const json report = json::parse(as_json.out);
  EXPECT_EQ(report.at("pass"), false);
  EXPECT_GE(report.at("problems").size(), 2U);
  for (const json& problem : report.at("problems")) {
    EXPECT_TRUE(problem.at("rank").is_number());
    EXPECT_TRUE(problem.at("position").is_number());
    EXPECT_FALSE(problem.at("text").get<std::string>().empty());
  }
}

TEST_F(ScheduleCommand, CheckMarksADeadlockInTheGrid) {
  // Rank 0 wants the gradient of microbatch 0 before it sends microbatch 1; rank 1 the other way.
  write(folder_ / "stuck.csv", "0F0,0B0,0F1,0B1\n1F0,1F1,1B0,1B1\n");
  const Outcome outcome = sluice("schedule check stuck.csv");
  EXPECT_EQ(outcome.code, 1);
  EXPECT_NE(outcome.out.find("0B0!"), std::string::npos) << outcome.out;
  EXPECT_NE(outcome.out.find("1F1!"), std::string::npos) << outcome.out;
}

TEST_F(ScheduleCommand, CheckAcceptsIdleCellsAndDrawsTheSchedule) {
  write(folder_ / "good.csv", "0F0,,0F1, 0B0,0B1\n,1F0,1B0,1F1,1B1\n\n");
  const Outcome outcome = sluice("schedule check good.csv");
  EXPECT_EQ(outcome.code, 0) << outcome.out << outcome.err;
  EXPECT_NE(outcome.out.find("good.csv: 2 ranks, 2 microbatches, 2 stages, 8 passes"),
            std::string::npos)
      << outcome.out;
  EXPECT_NE(outcome.out.find("rank 1  "), std::string::npos);
  const ordered_json report = sluice_json("schedule check good.csv");
  EXPECT_EQ(report["pass"], true);
  EXPECT_TRUE(report["problems"].empty());
}

TEST_F(ScheduleCommand, CheckOfWhatIsNoScheduleNamesTheCell) {
  write(folder_ / "bad.csv", "0F0,0Q0\n");
  expect_error("schedule check bad.csv", 2, {"bad.csv", "row 1", "column 2", "0Q0"});
  write(folder_ / "bad.csv", "");
  expect_error("schedule check bad.csv", 2, {"bad.csv", "no passes"});
  expect_error("schedule check nothing.csv", 2, {"nothing.csv", "No such file"});
  expect_error("schedule check .", 2, {"directory"});
}

struct HelpCase {
  std::string name;  // of the golden file
  std::string arguments;
  bool needs_torch;
};

std::vector<HelpCase> help_cases() {
  return {{"sluice", "", true},
          {"train", "train", true},
          {"generate", "generate", true},
          {"verify", "verify", true},
          {"simulate", "simulate", false},
          {"schedule", "schedule", false},
          {"schedule_list", "schedule list", false},
          {"schedule_show", "schedule show", false},
          {"schedule_check", "schedule check", false}};
}

class Help : public Program, public testing::WithParamInterface<HelpCase> {
 protected:
  void SetUp() override {
    if (GetParam().needs_torch && !SLUICE_BUILT_WITH_TORCH) {
      GTEST_SKIP() << "this build has no " << GetParam().name;
    }
  }

  // Only what needs torch pays for loading it.
  Outcome run(const std::string& line) const {
    return shell(line, GetParam().needs_torch ? SLUICE_TORCH_PROGRAM : SLUICE_PROGRAM);
  }
  Outcome help() const { return run("sluice " + GetParam().arguments + " --help"); }
};

// SLUICE_UPDATE_GOLDEN=1 writes the files anew; see tests/golden/README.md.
TEST_P(Help, IsTheGoldenText) {
  const Outcome outcome = help();
  EXPECT_EQ(outcome.code, 0);
  EXPECT_EQ(outcome.err, "");
  const fs::path golden = fs::path(SLUICE_GOLDEN_DIR) / ("help_" + GetParam().name + ".txt");
  if (std::getenv("SLUICE_UPDATE_GOLDEN") != nullptr) write(golden, outcome.out);
  EXPECT_EQ(outcome.out, read(golden))
      << "If this is as it should be, run SLUICE_UPDATE_GOLDEN=1 cli_test.";
}

TEST_P(Help, HasNoLineOverAHundredColumns) {
  std::istringstream lines(help().out);
  for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 100U) << line;
}

TEST_P(Help, HasAnExampleThatWorksAsPasted) {
  if (GetParam().needs_torch && !GetParam().arguments.empty()) {
    GTEST_SKIP() << "the README's commands cover what needs a model";
  }
  const std::string text = help().out;
  const std::string heading = "\nExample\n  ";
  const std::size_t at = text.find(heading);
  ASSERT_NE(at, std::string::npos) << text;
  const std::string example = text.substr(at + heading.size());
  const Outcome outcome = run(example.substr(0, example.find('\n')));
  EXPECT_EQ(outcome.code, 0) << example << outcome.err;
  EXPECT_NE(outcome.out, "");
}

INSTANTIATE_TEST_SUITE_P(OfEveryCommand, Help, testing::ValuesIn(help_cases()),
                         [](const auto& param_info) { return param_info.param.name; });

}  // namespace
}  // namespace sluice
