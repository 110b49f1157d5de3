#include "kv/tier/transfer.h"

namespace karez {

std::string_view to_string(TransferStatus status) {
  switch (status) {
    case TransferStatus::kOk:
      return "ok";
    case TransferStatus::kIoError:
      return "io error";
    case TransferStatus::kNoSpace:
      return "no space";
    case TransferStatus::kShort:
      return "short";
    case TransferStatus::kChecksumMismatch:
      return "checksum mismatch";
    case TransferStatus::kConflict:
      return "conflict";
    case TransferStatus::kDeadlinePassed:
      return "deadline passed";
    case TransferStatus::kCancelled:
      return "cancelled";
  }
  return "unknown";
}

}  // namespace karez
