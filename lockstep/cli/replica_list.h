// Numbers of replicas as people write them: "1,2,4", "1,2,4,…,4096", "8,...,1024".
#pragma once

#include <string>
#include <vector>

namespace lockstep::cli {

inline constexpr int kMostSimulated = 1'000'000;

// "…" or "..." stands for doubling from the number before it up to the one after it. UsageError,
// naming the flag, if the text is anything else.
std::vector<int> parse_replica_list(const std::string& flag, const std::string& text);

}  // namespace lockstep::cli
