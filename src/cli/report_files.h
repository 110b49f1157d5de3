// What a long measurement gives: files that the user named, and a table on standard output.
//
// Thread: the main thread.
#pragma once

#include <span>
#include <string>

#include "base/status.h"

namespace karez {

struct ReportFile {
  std::string path;
  std::string text;
};

// Writes all of them, whatever comes of the others. Files come before the table, whose reader may
// be gone; one that is standard output itself comes behind it. Fails: the first error of a file.
Expected<void> write_report(const std::string& table, std::span<const ReportFile> files);

}  // namespace karez
