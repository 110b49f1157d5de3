// The commands of the program. Each adds itself to the application: its flags, their help, and what
// runs when it was chosen.
//
// exit_code: 0 done; 2 bad input (arguments, files, prompts); 1 a failure while running. Set by the
// command's callback after it has printed its own error line to stderr.
#pragma once

namespace CLI {
class App;
}

namespace karez {

void add_serve_command(CLI::App& app, int& exit_code);
void add_route_command(CLI::App& app, int& exit_code);
void add_generate_command(CLI::App& app, int& exit_code);
void add_inspect_command(CLI::App& app, int& exit_code);
void add_bench_command(CLI::App& app, int& exit_code);
void add_eval_command(CLI::App& app, int& exit_code);

}  // namespace karez
