// Reads the typed fields of a JSON object and says precisely what is wrong with one.
//
// Absent and null are the same: nothing. Unknown fields are not looked at. The first problem is
// kept; later reads give their default, so that a parser reads all fields and then asks once.
// Thread: one caller at a time. Does not own the object, which must outlive the reader.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "server/api_error.h"
#include "server/json_input.h"

namespace karez {

// "a string", "null", "the number 3", "an array of 2": a value as messages show it.
std::string describe(const Json& value);

// The first problem of a request, shared by the readers of its nested objects.
struct FieldProblem {
  std::optional<ApiError> error;
};

class FieldReader {
 public:
  // path: of the object itself, empty for the body.
  FieldReader(const Json& object, std::string path, FieldProblem& problem);

  // null or absent: nullptr.
  const Json* find(std::string_view field) const;
  // "stream_options.include_usage"
  std::string path_of(std::string_view field) const;

  // Each: nothing if absent, or if wrong (then the problem is noted).
  std::optional<bool> boolean(std::string_view field);
  // A number without a fraction in [low, high].
  std::optional<std::int64_t> integer(std::string_view field, std::int64_t low, std::int64_t high);
  std::optional<double> number(std::string_view field, double low, double high);
  std::optional<std::string> string(std::string_view field);
  const Json* object(std::string_view field);
  const Json* array(std::string_view field);

  // Notes a problem: "{field} is {seen}, allowed are {allowed}".
  void wrong(std::string_view field, std::string_view seen, std::string_view allowed);
  // Notes a problem in the caller's words.
  void fail(std::string_view field, std::string message);
  bool failed() const { return problem_.error.has_value(); }
  FieldProblem& problem() { return problem_; }

 private:
  const Json& object_;
  std::string path_;
  FieldProblem& problem_;
};

}  // namespace karez
