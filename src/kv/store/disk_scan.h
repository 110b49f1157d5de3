// Reading a store's folder: which files in it are ours.
//
// By their names alone: a file, not a link, at a path of the form that DiskRecords writes.
// Thread: pure, but for the folder.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "kv/store/disk_index.h"
#include "kv/store/record_key.h"

namespace karez {

inline constexpr std::string_view kStoreFolder = "karez-v1";
inline constexpr std::string_view kTemporaryFolder = "karez-v1/tmp";

// What a file of so many bytes counts.
constexpr std::int64_t counted_bytes(std::int64_t bytes) { return (bytes + 4095) / 4096 * 4096; }

// Adds all of ours below `folder` (a descriptor), by their paths. Deletes temporary files whose
// writer is dead. Returns 0 or an error number; no such folder is no error.
int scan_store_folder(int folder, DiskIndex::Files& files);

// The name of the record at this path, if it is one of that identity's.
std::optional<RecordName> record_name_in(std::string_view path, std::string_view identity_folder);

}  // namespace karez
