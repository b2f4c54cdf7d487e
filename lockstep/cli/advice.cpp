#include "lockstep/cli/advice.h"

#include <string_view>

namespace lockstep::cli {
namespace {

struct Rewording {
  std::string_view library;  // how the advice begins; it extends to the end of the message
  std::string_view program;  // what replaces it
};

constexpr Rewording kRewordings[] = {
    {"compile with that seed, or use model.load", "give that --seed"},
    {"add this callback (", "give the flags of the original run (--early-stopping, --save-best)"},
    {"use model.load", "name a checkpoint that lockstep train wrote"},
    {"resume with the same batch size and drop_remainder",
     "keep the batch size, or change it between two passes over the data"},
    {", or smaller than one batch with drop_remainder", ""},
    {", or skip such files with .on_error", ", or move such files away"},
    {"; for images without labels set .labels", ""},
};

}  // namespace

std::string for_program(const std::string& message) {
  for (const Rewording& each : kRewordings) {
    const std::size_t begin = message.find(each.library);
    if (begin != std::string::npos) return message.substr(0, begin).append(each.program);
  }
  return message;
}

}  // namespace lockstep::cli
