// Slurm's short forms of lists. Both throw UsageError, which names `what`, for text that is not
// such a list, and for one that stands for more than kMaxNodes: a few characters can stand for
// billions.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep {

inline constexpr std::size_t kMaxNodes = 1 << 16;

// "n[001-003,07],gpu-[1-2]-x,login" → n001, n002, n003, n07, gpu-1-x, gpu-2-x, login. A name may
// have several brackets, of which the last counts fastest. Numbers keep the width of a range's
// first one. The result is not empty.
std::vector<std::string> expand_node_list(std::string_view text, std::string_view what);

// "2(x3),1" → 2, 2, 2, 1.
std::vector<int> expand_tasks_per_node(std::string_view text, std::string_view what);

}  // namespace lockstep
