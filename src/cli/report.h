// One line for an error, one exit code for it.
//
// Thread: the main thread.
#pragma once

#include <string_view>

#include "base/status.h"

namespace karez {

inline constexpr int kExitOk = 0;
inline constexpr int kExitFailure = 1;        // something failed while running
inline constexpr int kExitBadInput = 2;       // arguments, files, prompts
inline constexpr int kExitInterrupted = 130;  // Ctrl-C, as shells count it

// 2 for what the user can mend (arguments, files, limits too small), 1 for the rest.
int exit_code_for(StatusCode code);

// Prints "karez: error: MESSAGE" as one line to stderr (line breaks and control characters in the
// message are replaced) and returns the exit code.
int report_error(const Status& status);
int report_error(std::string_view message, int exit_code);

// Prints "karez: note: MESSAGE" in the same way.
void report_note(std::string_view message);

// Writes to standard error. A full disk or a reader that is gone loses the text and nothing else.
void write_stderr(std::string_view text);
// Flushes standard output. Fails: kIoError if anything that was written to it is lost.
Expected<void> flush_stdout();

}  // namespace karez
