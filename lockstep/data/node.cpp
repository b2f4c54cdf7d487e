#include "lockstep/data/node.h"

#include "lockstep/base/error.h"

namespace lockstep {

std::int64_t Cursor::skip(std::int64_t count) {
  std::int64_t passed = 0;
  while (passed < count && next()) ++passed;
  return passed;
}

std::int64_t Cursor::next_rows(std::span<std::int64_t>) {
  fail<InternalError>("rows were asked of a cursor that has no table");
}

std::optional<std::int64_t> Cursor::next_into(std::span<Tensor> destination) {
  const std::optional<Element> element = next();
  if (!element) return std::nullopt;
  return copy_into(*element, destination);
}

}  // namespace lockstep
