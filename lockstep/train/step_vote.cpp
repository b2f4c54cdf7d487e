#include "lockstep/train/step_vote.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <type_traits>

#include "lockstep/base/error.h"

namespace lockstep {

bool StepVotes::any(bool StepVote::*flag) const {
  return std::ranges::any_of(all, flag);
}

bool StepVotes::every(bool StepVote::*flag) const {
  return std::ranges::all_of(all, flag);
}

std::int64_t StepVotes::rows() const {
  return rows_before(static_cast<int>(all.size()));
}

std::int64_t StepVotes::rows_before(int worker) const {
  std::int64_t sum = 0;
  for (int w = 0; w < worker; ++w) sum += all[static_cast<std::size_t>(w)].rows;
  return sum;
}

StepVotes take_votes(World& world, const std::function<StepVote()>& vote) {
  static_assert(std::is_trivially_copyable_v<StepVote>);
  const std::vector<std::string> said = world.gather([&] {
    const StepVote mine = vote();
    std::string bytes(sizeof(mine), '\0');
    std::memcpy(bytes.data(), &mine, sizeof(mine));
    return bytes;
  });
  StepVotes votes;
  for (const std::string& theirs : said) {
    ensure(theirs.size() == sizeof(StepVote), "[world] a vote of {} bytes", theirs.size());
    std::memcpy(&votes.all.emplace_back(), theirs.data(), sizeof(StepVote));
  }
  return votes;
}

}  // namespace lockstep
