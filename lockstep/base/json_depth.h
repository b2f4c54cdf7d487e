// How deep JSON may nest. Parsers, and what is done with their result, recurse into what nests;
// text from outside is looked at before it is parsed, so that brackets alone cannot use up the
// stack.
#pragma once

#include <cstddef>
#include <string_view>

namespace lockstep {

inline constexpr std::size_t kMaxJsonDepth = 64;

// Whether the text nests deeper than that. Brackets in strings do not count.
bool nests_too_deep(std::string_view json, std::size_t limit = kMaxJsonDepth);

}  // namespace lockstep
