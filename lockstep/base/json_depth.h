// How deeply JSON may nest. Parsers, and the code that walks their result, are recursive; text from
// outside is checked before it is parsed, so that brackets alone cannot overflow the stack.
#pragma once

#include <cstddef>
#include <string_view>

namespace lockstep {

inline constexpr std::size_t kMaxJsonDepth = 64;

// Whether the text nests deeper than `limit`. Brackets in strings do not count.
bool nests_too_deep(std::string_view json, std::size_t limit = kMaxJsonDepth);

}  // namespace lockstep
