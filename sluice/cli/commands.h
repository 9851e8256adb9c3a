// commands.h - the commands of `sluice`, one file each. main() maps errors to exit codes.
#pragma once

namespace CLI {
class App;
}

namespace sluice::cli {

/// Each adds its subcommand to `app`: options, help with a working example, and a callback that
/// runs it. Results go to standard output, progress to standard error; errors are thrown. The help
/// of all commands has one form (help.h): description() is one sentence, footer() is one command
/// line that works as pasted, group() of an option is its heading, type_name() stands for its
/// value, and default_str() or capture_default_str() shows its default.
void add_simulate(CLI::App& app);
void add_schedule(CLI::App& app);
void add_train(CLI::App& app);
void add_generate(CLI::App& app);
void add_verify(CLI::App& app);

}  // namespace sluice::cli
