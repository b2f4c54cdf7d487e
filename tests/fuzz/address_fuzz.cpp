// Any text is a UsageError, or an address that is printed and read again as the same one.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "lockstep/base/error.h"
#include "lockstep/cluster/address.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace lockstep;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  Address address;
  try {
    address = parse_address(text, "input");
  } catch (const UsageError&) {
    return 0;
  }
  if (parse_address(address.text(), "again") != address) std::abort();
  if (parse_host(address.host, "host") != address.host) std::abort();
  return 0;
}
