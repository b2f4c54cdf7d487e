#include "lockstep/cluster/in_quotes.h"

namespace lockstep {

std::string in_quotes(std::string_view value) {
  constexpr std::size_t kMost = 160;
  std::string text = "'";
  for (const char c : value.substr(0, kMost)) {
    const auto byte = static_cast<unsigned char>(c);
    text += byte < 0x20 || byte == 0x7f ? '?' : c;
  }
  return text + (value.size() > kMost ? "'…" : "'");
}

}  // namespace lockstep
