// commands.h - the commands of `sluice`, one file each. main() maps errors to exit codes.
#pragma once

namespace CLI {
class App;
}

namespace sluice::cli {

/// Each adds its subcommand to `app`: options, help with a working example, and a callback that runs
/// it. Results go to standard output, progress to standard error; errors are thrown.
void add_simulate(CLI::App& app);
void add_schedule(CLI::App& app);
void add_train(CLI::App& app);
void add_generate(CLI::App& app);
void add_verify(CLI::App& app);

}  // namespace sluice::cli
