#include "lockstep/cli/advice.h"

#include <string_view>

namespace lockstep::cli {
namespace {

struct Advice {
  std::string_view library;  // how the advice begins; it goes on to the end of the message
  std::string_view program;  // what stands there instead
};

constexpr Advice kAdvice[] = {
    {"compile with that seed, or use model.load", "give that --seed"},
    {"add this callback (", "give the flags that the run had (--early-stopping, --save-best)"},
    {"use model.load", "name a checkpoint that lockstep train wrote"},
    {"resume with the same batch size and drop_remainder",
     "leave the batch as it was, or change it when a pass over the data is done"},
    {", or smaller than one batch with drop_remainder", ""},
    {", or leave such files out with .on_error", ", or move such files away"},
    {"; for pictures without labels ask for .labels", ""},
};

}  // namespace

std::string for_program(const std::string& message) {
  for (const Advice& advice : kAdvice) {
    const std::size_t begin = message.find(advice.library);
    if (begin != std::string::npos) return message.substr(0, begin).append(advice.program);
  }
  return message;
}

}  // namespace lockstep::cli
