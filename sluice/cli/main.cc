// The program: parses the command line, runs one command, maps errors to exit codes.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <exception>
#include <memory>
#include <string>
#include <vector>

#include "sluice/cli/commands.h"
#include "sluice/cli/help.h"
#include "sluice/cli/output.h"

namespace sluice::cli {
namespace {

/// The command that was being parsed, with its name as typed: "sluice schedule show".
struct Typed {
  const CLI::App* command;
  std::string name;
};

Typed typed_command(const CLI::App& app) {
  Typed typed{&app, app.get_name()};
  while (!typed.command->get_subcommands().empty()) {
    typed.command = typed.command->get_subcommands().front();
    typed.name += " " + typed.command->get_name();
  }
  return typed;
}

/// What was wrong, in the form of our other errors where CLI11's own words are thin.
std::string explain(const CLI::App& app, const Typed& typed, const CLI::ParseError& error) {
  std::vector<std::string> extras = app.remaining(/*recurse=*/true);
  const auto option = std::find_if(extras.begin(), extras.end(), [](const std::string& extra) {
    return extra.size() > 1 && extra.front() == '-';
  });
  if (option != extras.end()) return fmt::format("{} has no option {}", typed.name, *option);
  if (extras.empty()) return error.what();
  std::vector<std::string> commands;
  for (const CLI::App* command : typed.command->get_subcommands({})) {
    commands.push_back(command->get_name());
  }
  if (commands.empty()) {
    return fmt::format("{} has no use for the argument '{}'", typed.name, extras.front());
  }
  return fmt::format("{} has no command '{}': choose one of {}", typed.name, extras.front(),
                     fmt::join(commands, ", "));
}

int report_parse_error(const CLI::App& app, const CLI::ParseError& error) {
  const Typed typed = typed_command(app);
  return report(ExitCode::kWrongUse, fmt::format("{}; `{} --help` shows what is valid",
                                                 explain(app, typed, error), typed.name));
}

int run(int argc, char** argv) {
  CLI::App app("Train language models through a pipeline, and predict their time and memory first.",
               "sluice");
  app.formatter(std::make_shared<HelpFormatter>());
  app.set_help_flag("--help", "print this help");
  app.set_version_flag("--version", std::string("sluice ") + SLUICE_VERSION, "print the version");
  app.require_subcommand(0, 1);
  app.footer("sluice simulate interleaved --ranks 4 --microbatches 8");
  add_train(app);
  add_generate(app);
  add_verify(app);
  add_simulate(app);
  add_schedule(app);
  try {
    app.parse(argc, argv);
    if (app.get_subcommands().empty()) print(app.help());
    return static_cast<int>(ExitCode::kDone);
  } catch (const CLI::CallForHelp&) {
    print(app.help());
    return static_cast<int>(ExitCode::kDone);
  } catch (const CLI::CallForVersion& version) {
    print(std::string(version.what()) + "\n");
    return static_cast<int>(ExitCode::kDone);
  } catch (const CLI::ParseError& error) {
    return report_parse_error(app, error);
  }
}

int run_and_report(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (...) {
    return report_error(std::current_exception());
  }
}

}  // namespace
}  // namespace sluice::cli

int main(int argc, char** argv) { return sluice::cli::run_and_report(argc, argv); }
